"""Paths that nothing serves: the error names the one that does."""

from __future__ import annotations

import httpx
import pytest

from agentspec.gateway import ApiKeys
from agentspec.gateway.call import Endpoint, meant_path
from tests.gateway.support.live import TIMEOUT_S, chat_body, serving_engine, serving_proxy
from tests.gateway.support.scripted import ScriptedEngine

SLIPS = ("{}/", "/v1{}", "{}//", "//{}", "/v1//{}", "/v1/v1{}", "/V1{}/", "/openai{}", "/api{}/")


def send(root: str, path: str, method: str = "POST", key: str = "none") -> httpx.Response:
    headers = {"authorization": f"Bearer {key}"}
    return httpx.request(method, root + path, json=chat_body(), headers=headers, timeout=TIMEOUT_S)


@pytest.mark.parametrize("endpoint", [Endpoint.CHAT, Endpoint.COMPLETIONS, Endpoint.RESPONSES])
@pytest.mark.parametrize("slip", [*SLIPS, "{without_v1}", "{without_v1}/", "/stages/flow/a{without_v1}"])
def test_the_error_names_the_path(url: str, endpoint: Endpoint, slip: str) -> None:
    path = slip.format(endpoint, without_v1=endpoint.removeprefix("/v1"))
    answer = send(url, path)
    assert answer.status_code == 404
    error = answer.json()["error"]
    assert error["code"] == "unknown_url"
    assert endpoint in error["message"]
    assert "base URL ends in /v1" in error["message"]


@pytest.mark.parametrize(
    ("method", "path", "said"),
    [
        ("POST", "/v1/messages", "no API of Anthropic's: use /v1/chat/completions"),
        ("POST", "/v1/messages/count_tokens", "/tokenize counts tokens"),
        ("POST", "/v1/embeddings", "no embeddings"),
        ("GET", "/models", "/v1/models serves this"),
        ("GET", "/v1/v1/models", "/v1/models serves this"),
        ("POST", "/v1/tokenize", "/tokenize serves this"),
        ("POST", "/v1/nothing", "there is nothing here"),
        ("GET", "/", "there is nothing here"),
    ],
)
def test_other_paths(url: str, method: str, path: str, said: str) -> None:
    answer = send(url, path, method)
    assert answer.status_code == 404
    assert said in answer.json()["error"]["message"]


def test_with_keys_and_in_front_of_other_servers() -> None:
    engine = ScriptedEngine()
    with serving_engine(engine) as inner:
        for keys in (None, ApiKeys.parse(["mine=acme"])):
            with serving_proxy(inner, keys=keys) as root:
                for path in ("/v1/chat/completions/", "/v1/v1/chat/completions"):
                    answer = send(root, path, key="mine")
                    assert answer.status_code == 404
                    assert "/v1/chat/completions serves this" in answer.json()["error"]["message"]
        with serving_proxy(inner, keys=ApiKeys.parse(["mine=acme"])) as root:
            assert send(root, "/chat/completions", key="mine").status_code == 404
            assert send(root, "/v1/audio/speech", key="mine").status_code == 403
            assert send(root, "/chat/completions", key="other").status_code == 401
    assert engine.requests == []


def test_a_path_means_itself() -> None:
    for endpoint in Endpoint:
        assert meant_path(endpoint) is None
    assert meant_path("/v1/chat/completions/batch/") == Endpoint.CHAT_BATCH
    assert meant_path("") is None
