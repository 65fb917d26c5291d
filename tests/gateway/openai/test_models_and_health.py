from __future__ import annotations

import httpx
import openai
import pytest

from tests.gateway.support.live import client_of, serving_engine
from tests.gateway.support.scripted import ScriptedEngine


def test_the_model_is_listed(url: str) -> None:
    with client_of(url) as client:
        (model,) = client.models.list().data
        assert model.id == "scripted"
        assert model.to_dict()["max_model_len"] == 4096
        assert client.models.retrieve("scripted").id == "scripted"
        with pytest.raises(openai.NotFoundError) as caught:
            client.models.retrieve("gpt-9")
    assert caught.value.code == "model_not_found"


def test_health_follows_the_engine() -> None:
    engine = ScriptedEngine()
    with serving_engine(engine) as root:
        assert httpx.get(f"{root}/health").json() == httpx.get(f"{root}/ping").json() == {"status": "ok"}
        engine.is_healthy = False
        assert httpx.get(f"{root}/health").status_code == 503
    assert engine.num_closed == 1
