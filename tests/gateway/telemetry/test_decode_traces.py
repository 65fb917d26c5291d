"""Decode steps of traced requests, for engines that do not include them in their responses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import httpx
import pytest

from agentspec.gateway import ApiKeys
from tests.gateway.support.live import TIMEOUT_S, chat_body, post, serving_app, serving_engine, serving_proxy
from tests.gateway.support.scripted import ScriptedEngine
from tests.gateway.support.tracing_engine import STEPS, TracingEngine

KEYS = ApiKeys.parse(["ka=acme", "kb=bolt"])


@pytest.fixture
def engine() -> TracingEngine:
    return TracingEngine()


@pytest.fixture
def root(engine: TracingEngine) -> Iterator[str]:
    with serving_app(engine.app) as url, serving_proxy(url, keys=KEYS) as root:
        yield root


def ask(root: str, key: str = "ka", **headers: str) -> str:
    """Send a call and return its request id."""
    answer = post(root, chat_body(), authorization=f"Bearer {key}", **headers)
    assert answer.status_code == 200
    return answer.headers["x-request-id"]


def trace(root: str, request_id: str, key: str = "ka") -> httpx.Response:
    headers = {"authorization": f"Bearer {key}"}
    return httpx.get(f"{root}/agentspec/traces/{request_id}", headers=headers, timeout=TIMEOUT_S)


def is_unknown(answer: httpx.Response) -> bool:
    return (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_trace")


def test_a_traced_call_takes_its_id_along_and_others_none(root: str, engine: TracingEngine) -> None:
    given = ask(root, x_agentspec_trace="1", x_request_id="mine")
    made = ask(root, x_agentspec_trace="1", x_request_id="not sane")
    ask(root, x_agentspec_trace="0")
    ask(root)
    assert [xargs.get("agentspec_trace") for xargs in engine.seen] == ["mine", made, None, None]
    assert trace(root, given).json() == {"steps": STEPS}
    assert trace(root, made).json() == {"steps": STEPS}


def test_a_client_cannot_write_the_tag_itself(root: str, engine: TracingEngine) -> None:
    body = chat_body(vllm_xargs={"agentspec_trace": "x"})
    assert post(root, body, authorization="Bearer ka").status_code == 200
    assert "agentspec_trace" not in engine.seen[-1]


def test_tenants_see_their_own_traces(root: str, engine: TracingEngine) -> None:
    ask(root, "ka", x_agentspec_trace="1", x_request_id="same")
    assert is_unknown(trace(root, "same", "kb"))
    assert engine.asked[-1] == {"tenant": "bolt", "id": "same"}
    assert trace(root, "same", "ka").status_code == 200
    assert trace(root, "same", "nobody").status_code == 401
    ask(root, "kb", x_agentspec_trace="1", x_request_id="same")
    assert trace(root, "same", "kb").status_code == 200


def test_an_operator_sees_the_traces_of_all_tenants(engine: TracingEngine) -> None:
    with serving_app(engine.app) as url, serving_proxy(url, keys=KEYS, admin_key="boss") as root:
        request_id = ask(root, "kb", x_agentspec_trace="1")
        assert trace(root, request_id, "boss").json()["steps"] == STEPS
        assert trace(root, f"{request_id}?tenant=bolt", "boss").json()["steps"] == STEPS
        assert is_unknown(trace(root, f"{request_id}?tenant=acme", "boss"))
        assert is_unknown(trace(root, f"{request_id}?tenant=bolt", "ka"))


def test_the_embedded_engine_has_told_already() -> None:
    with serving_engine(ScriptedEngine()) as root:
        answer = post(root, chat_body(), x_agentspec_trace="1")
        assert answer.json()["metrics"]["speculative_decoding"]["steps"]
        assert is_unknown(trace(root, answer.headers["x-request-id"]))


def test_an_engine_without_the_plugin_is_told_so() -> None:
    with serving_app(TracingEngine(has_plugin=False).app) as url, serving_proxy(url) as root:
        answer = trace(root, "mine")
    assert (answer.status_code, answer.json()["error"]["code"]) == (501, "not_supported_by_engine")


def test_whichever_engine_of_a_fleet_answered_is_found() -> None:
    engines = [TracingEngine() for _ in range(3)]
    with ExitStack() as stack:
        urls = [stack.enter_context(serving_app(engine.app)) for engine in engines]
        root = stack.enter_context(serving_proxy(*urls, keys=KEYS))
        for number in range(6):
            found = trace(root, ask(root, x_agentspec_trace="1", x_agentspec_stage=f"s{number}"))
            assert found.json() == {"steps": STEPS}
        assert is_unknown(trace(root, "none"))


def test_an_engine_that_broke_off_has_a_beginning_and_is_not_the_one() -> None:
    engines = [TracingEngine(traces={("acme", "mine")}, steps=steps) for steps in ([], STEPS, STEPS[:1])]
    with ExitStack() as stack:
        urls = [stack.enter_context(serving_app(engine.app)) for engine in engines]
        root = stack.enter_context(serving_proxy(*urls, keys=KEYS))
        assert trace(root, "mine").json() == {"steps": STEPS}


def test_an_engine_that_is_down_might_have_had_it(engine: TracingEngine, free_port: int) -> None:
    with (
        serving_app(engine.app) as url,
        serving_proxy(f"http://127.0.0.1:{free_port}", url, keys=KEYS) as root,
    ):
        engine.traces.add(("acme", "mine"))
        assert trace(root, "mine").json() == {"steps": STEPS}
        assert trace(root, "other").status_code == 502
