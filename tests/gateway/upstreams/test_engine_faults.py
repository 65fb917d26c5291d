"""Engines that violate HTTP: clients get clear errors, no request hangs, no connection stays open."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import psutil
import pytest

from agentspec.gateway.call import Endpoint
from agentspec.gateway.upstreams.replica import Replica, _models
from tests.gateway.support.leaving import asking, eventually
from tests.gateway.support.live import TIMEOUT_S, chat_body, post, serving_engine, serving_proxy
from tests.gateway.support.misbehaving import EVENT, Misbehaving, misbehaving
from tests.gateway.support.scripted import ScriptedEngine

PATIENCE: dict[str, Any] = {
    "timeouts": {"first_byte_s": TIMEOUT_S, "idle_s": TIMEOUT_S},
    "retries": {"num_retries": 1, "backoff_s": 0.001},
}
HASTE = {**PATIENCE, "timeouts": {"first_byte_s": 0.3, "idle_s": 0.3}}
BRIEF_SILENCE = {**PATIENCE, "timeouts": {"first_byte_s": TIMEOUT_S, "idle_s": 0.3}}
NO_ANSWER = (
    "hangs up at once",
    "dies in the head",
    "garbage",
    "endless head",
    "endless header",
    "endless hints",
    "status 999",
    "status 42",
    "status 101",
    "control character",
    "two lengths",
    "length and chunks",
)
BROKEN_STREAM = (
    "dies in the stream",
    "dies in a chunk",
    "chunked garbage",
    "endless trailers",
    "endless trailer",
    "endless chunk extension",
)
WELL_ENOUGH = (
    "well",
    "hints",
    "HTTP/1.0",
    "closes",
    "closes on reuse",
    "length too small",
    "two answers",
    "two answers, late",
)


@pytest.fixture(scope="module")
def engine() -> Iterator[Misbehaving]:
    with misbehaving() as engine:
        yield engine


@pytest.fixture(scope="module")
def root(engine: Misbehaving) -> Iterator[str]:
    yield from without_connections_left(engine, PATIENCE)


@pytest.fixture(scope="module")
def hasty(engine: Misbehaving) -> Iterator[str]:
    """Yield a gateway with short time limits, for requests that exceed them."""
    yield from without_connections_left(engine, HASTE)


def without_connections_left(engine: Misbehaving, fleet: dict[str, Any]) -> Iterator[str]:
    """Yield a gateway and check that both sides close every connection to the engine at the end."""
    with serving_proxy(engine.url, fleet=fleet) as root:
        yield root
        assert eventually(lambda: engine.num_open == 0)
        port = httpx.URL(engine.url).port
        connections = psutil.Process().net_connections("tcp")
        assert [
            one
            for one in connections
            if one.raddr and one.raddr.port == port and one.status != psutil.CONN_TIME_WAIT
        ] == []


def ask(root: str, way: str, **fields: object) -> httpx.Response:
    return post(root, chat_body(**fields), x_way=way)


def code_of(answer: httpx.Response) -> str:
    body = answer.json()
    assert set(body["error"]) == {"message", "type", "param", "code"}
    code: str = body["error"]["code"]
    return code


@pytest.mark.parametrize("way", NO_ANSWER)
def test_what_is_no_answer(root: str, way: str) -> None:
    answer = ask(root, way)
    assert (answer.status_code, code_of(answer)) == (502, "upstream_unavailable")
    assert ask(root, "well").content == b"{}"


@pytest.mark.parametrize("way", ["hangs", "hangs in the head"])
def test_an_answer_that_does_not_begin(hasty: str, way: str) -> None:
    answer = ask(hasty, way)
    assert (answer.status_code, code_of(answer)) == (504, "upstream_timeout")


@pytest.mark.parametrize("way", BROKEN_STREAM)
def test_a_stream_without_its_end(root: str, way: str) -> None:
    answer = ask(root, way, stream=True)
    assert answer.content.startswith(EVENT)
    last = answer.text.rstrip().splitlines()[-1]
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "upstream_unavailable"


def test_a_stream_that_stands_still(hasty: str) -> None:
    answer = ask(hasty, "hangs in the stream", stream=True)
    last = answer.text.rstrip().splitlines()[-1]
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "upstream_timeout"


def test_half_a_body_is_not_passed_off_as_a_whole_one(root: str) -> None:
    with pytest.raises(httpx.RemoteProtocolError):
        ask(root, "dies in the body")


def test_nor_is_one_that_stands_still(engine: Misbehaving) -> None:
    """The head arrives in time, the rest never does."""
    with serving_proxy(engine.url, fleet=BRIEF_SILENCE) as root, pytest.raises(httpx.RemoteProtocolError):
        ask(root, "hangs in the body")


@pytest.mark.parametrize("way", WELL_ENOUGH)
def test_a_whole_answer_is_one(root: str, way: str) -> None:
    for _ in range(3):
        answer = ask(root, way)
        assert (answer.status_code, answer.content) == (200, b"{}")
        assert "x-hint" not in answer.headers


def test_trailers_are_not_passed_on(root: str) -> None:
    answer = ask(root, "trailers", stream=True)
    assert answer.content == EVENT
    assert answer.headers["x-agentspec-stage"] == "default"


def test_a_redirect_is_the_clients_to_follow(root: str, engine: Misbehaving) -> None:
    before = len(engine.requests)
    answer = ask(root, "redirect")
    assert (answer.status_code, answer.headers["location"]) == (307, "http://127.0.0.1:9/")
    assert len(engine.requests) == before + 1


@pytest.mark.parametrize(
    ("way", "status"), [("nothing", 204), ("nothing, with a length", 204), ("not modified", 304)]
)
def test_an_answer_without_a_body(root: str, way: str, status: int) -> None:
    with httpx.Client(base_url=root) as client:
        for _ in range(2):  # the second one uses the same connection
            answer = client.post("/v1/chat/completions", json=chat_body(), headers={"x-way": way})
            assert (answer.status_code, answer.content) == (status, b"")


def test_a_head_has_no_body(root: str) -> None:
    answer = httpx.head(f"{root}/v1/models", headers={"x-way": "head"}, timeout=TIMEOUT_S)
    assert (answer.status_code, answer.headers["content-length"]) == (200, "1234")
    assert ask(root, "well").content == b"{}"


def test_a_failure_of_the_engine_is_passed_on(root: str) -> None:
    answer = ask(root, "500")
    assert (answer.status_code, answer.json()) == (500, {"error": 1})


def test_a_request_that_kills_engines_is_sent_to_few(engine: Misbehaving) -> None:
    """The gateway does not retry it on every idle connection."""
    with serving_proxy(engine.url, fleet={**BRIEF_SILENCE, "retries": {"num_retries": 0}}) as root:
        with ThreadPoolExecutor(4) as pool:
            streams = [pool.submit(ask, root, "hangs in the stream", stream=True) for _ in range(4)]
            [stream.result() for stream in streams]
            list(pool.map(lambda _: ask(root, "well"), range(8)))
        before = len(engine.requests)
        assert ask(root, "hangs up at once").status_code == 502
        assert len(engine.requests) - before <= 2


def test_other_requests_are_not_touched(root: str) -> None:
    ways = [*NO_ANSWER, *BROKEN_STREAM]
    with asking(root, Endpoint.CHAT, "hangs"), ThreadPoolExecutor(4) as pool:
        bad = [pool.submit(ask, root, way, stream=True) for way in ways]
        good = [pool.submit(ask, root, "well") for _ in range(40)]
        assert {answer.result().content for answer in good} == {b"{}"}
        assert all(answer.result().status_code in (200, 502) for answer in bad)


@pytest.mark.parametrize(
    "listed",
    [b"[]", b'{"data": 5}', b'{"data": [{}]}', b'{"data": [{"id": []}]}', b"no JSON", b"[" * 5000],
)
def test_a_list_of_models_that_is_none(listed: bytes) -> None:
    assert _models(200, listed) == []


def test_an_engine_that_hangs_does_not_hold_the_models_of_the_others(
    engine: Misbehaving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only this engine's time limit is short. The other may be slow because the machine is busy."""
    patient = Replica.__init__

    def hasty(replica: Replica, settings: Any, fleet: Any, *more: Any, **named: Any) -> None:
        patient(replica, settings, fleet, *more, **named)
        timeout_s = 0.1 if replica.root == engine.url else TIMEOUT_S
        replica._health = fleet.health.model_copy(update={"timeout_s": timeout_s})

    monkeypatch.setattr(Replica, "__init__", hasty)
    with serving_engine(ScriptedEngine()) as well, serving_proxy(engine.url, well) as root:
        answer = httpx.get(f"{root}/v1/models", headers={"x-way": "hangs"}, timeout=TIMEOUT_S)
    assert [model["id"] for model in answer.json()["data"]] == ["scripted"]
