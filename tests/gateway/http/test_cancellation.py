from __future__ import annotations

from typing import Any

import pytest

from tests.gateway.support.leaving import eventually, leave_before_the_first_byte, leave_midway
from tests.gateway.support.live import TIMEOUT_S, serving_engine, serving_proxy
from tests.gateway.support.scripted import ScriptedEngine
from tests.gateway.support.telemetry import scrape


def test_a_client_that_leaves_midway_frees_the_engine() -> None:
    engine = ScriptedEngine(is_endless=True)
    with serving_engine(engine) as root:
        leave_midway(root)
        assert engine.released.wait(TIMEOUT_S)
        gone = (
            "agentspec_gateway_requests_total",
            (("endpoint", "/v1/chat/completions"), ("status", "499")),
        )
        assert eventually(lambda: scrape(root).get(gone) == 1)


@pytest.mark.parametrize("fields", [{}, {"stream": True}, {"n": 2}])
def test_a_client_that_leaves_before_the_first_byte_frees_the_engine(fields: dict[str, Any]) -> None:
    engine = ScriptedEngine(is_silent=True)
    with serving_engine(engine) as root:
        leave_before_the_first_byte(engine, root, **fields)
        assert engine.released.wait(TIMEOUT_S)


def test_a_client_that_leaves_frees_every_prompt_of_a_batch() -> None:
    engine = ScriptedEngine(is_silent=True)
    with serving_engine(engine) as root:
        leave_before_the_first_byte(engine, root, "/v1/completions", messages=None, prompt=["a", "b"])
        assert engine.released.wait(TIMEOUT_S)


def test_the_upstream_of_a_proxy_is_freed_too() -> None:
    engine = ScriptedEngine(is_endless=True)
    with serving_engine(engine) as upstream, serving_proxy(upstream) as root:
        leave_midway(root)
        assert engine.released.wait(TIMEOUT_S)


def test_the_upstream_of_a_proxy_is_freed_before_the_first_byte() -> None:
    engine = ScriptedEngine(is_silent=True)
    with serving_engine(engine) as upstream, serving_proxy(upstream) as root:
        leave_before_the_first_byte(engine, root)
        assert engine.released.wait(TIMEOUT_S)
