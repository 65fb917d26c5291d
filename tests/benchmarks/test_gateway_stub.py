"""The stub: its answers on every endpoint, their timing, and its detection of disconnects."""

from __future__ import annotations

import json
import time
from itertools import pairwise
from typing import Any

import httpx
import pytest

from benchmarks.gateway import answers
from benchmarks.gateway.agent_bodies import body
from benchmarks.gateway.plan import HANG_MS, Plan
from benchmarks.gateway.stub import MARKS_PATH
from benchmarks.vllm.server import Server

STREAMING = [endpoint for endpoint in answers.FORMS if endpoint != answers.EMBEDDINGS]
SHORT = Plan(num_chunks=3)


def ask(stub: Server, endpoint: str, plan: Plan, *, is_stream: bool) -> httpx.Response:
    return httpx.post(stub.url + endpoint, content=body(endpoint, plan, is_stream=is_stream, num_bytes=0))


def events(data: bytes) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in data.decode().splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


@pytest.mark.parametrize(
    ("plan", "model"),
    [
        (Plan(), "stub"),
        (Plan(delay_ms=20, num_chunks=5, gap_ms=10), "stub-d20-c5-g10"),
        (Plan(status=429, mark="a7"), "stub-s429-ma7"),
        (Plan(breaks_after=2), "stub-x2"),
    ],
)
def test_a_plan_is_a_model_name(plan: Plan, model: str) -> None:
    assert plan.model == model
    assert Plan.parse(model) == plan


@pytest.mark.parametrize("endpoint", answers.FORMS)
def test_an_answer_in_one_piece(stub: Server, endpoint: str) -> None:
    answer = ask(stub, endpoint, SHORT, is_stream=False)
    assert answer.status_code == 200
    assert answer.content == answers.body(endpoint, SHORT, is_stream=False)
    assert answer.json()["usage"]


@pytest.mark.parametrize("endpoint", STREAMING)
def test_a_stream(stub: Server, endpoint: str) -> None:
    answer = ask(stub, endpoint, SHORT, is_stream=True)
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.content == answers.body(endpoint, SHORT, is_stream=True)
    assert len(answers.chunks(endpoint, 3)) == 3
    assert [word for word in answers.words(3) if word in answer.text] == answers.words(3)


def test_a_chat_stream_as_openai_has_them(stub: Server) -> None:
    first, *said, finish, usage = events(ask(stub, answers.CHAT, SHORT, is_stream=True).content)
    assert first["choices"][0]["delta"]["role"] == "assistant"
    assert [one["choices"][0]["delta"]["content"] for one in said] == answers.words(3)
    assert finish["choices"][0]["finish_reason"] == "stop"
    assert (usage["choices"], usage["usage"]["completion_tokens"]) == ([], 3)


def test_chunks_come_when_they_are_due(stub: Server) -> None:
    plan = Plan(delay_ms=30, num_chunks=4, gap_ms=20)
    came_s = [time.monotonic()]
    request = body(answers.CHAT, plan, is_stream=True, num_bytes=0)
    with httpx.stream("POST", stub.url + answers.CHAT, content=request) as answer:
        came_s += [time.monotonic() for _ in answer.iter_raw()]
    # never early; lateness depends on the machine
    assert came_s[-1] - came_s[0] >= (30 + 3 * 20 - 2) / 1e3
    assert all(later >= earlier for earlier, later in pairwise(came_s))


def test_an_error(stub: Server) -> None:
    answer = ask(stub, answers.CHAT, Plan(status=429), is_stream=True)
    assert (answer.status_code, answer.content) == (429, answers.error(429))


def test_a_stream_that_breaks_off(stub: Server) -> None:
    plan = Plan(num_chunks=5, breaks_after=2)
    request = body(answers.CHAT, plan, is_stream=True, num_bytes=0)
    parts: list[bytes] = []
    with (
        pytest.raises(httpx.RemoteProtocolError),
        httpx.stream("POST", stub.url + answers.CHAT, content=request) as answer,
    ):
        parts.extend(answer.iter_raw())
    assert b"".join(parts) == answers.body(answers.CHAT, plan, is_stream=True)
    assert len(b"".join(parts)) < len(answers.body(answers.CHAT, Plan(num_chunks=5), is_stream=True))


def test_it_knows_who_left(stub: Server) -> None:
    before_ns = time.monotonic_ns()
    plan = Plan(delay_ms=HANG_MS, mark="leaver")
    request = body(answers.CHAT, plan, is_stream=False, num_bytes=0)
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(stub.url + answers.CHAT, content=request, timeout=httpx.Timeout(5, read=0.1))
    ask(stub, answers.CHAT, Plan(mark="stayer"), is_stream=False)
    marks = httpx.get(stub.url + MARKS_PATH).json()
    assert before_ns < marks["arrived"]["leaver"] < marks["gone"]["leaver"] < time.monotonic_ns()
    assert "stayer" in marks["arrived"]
    assert "stayer" not in marks["gone"]


@pytest.mark.parametrize("endpoint", answers.FORMS)
@pytest.mark.parametrize("num_bytes", [6_144, 65_536])
def test_bodies_have_the_size_that_was_asked_for(endpoint: str, num_bytes: int) -> None:
    plan = Plan(mark="x")
    data = body(endpoint, plan, is_stream=True, num_bytes=num_bytes, number=3)
    assert len(data) == pytest.approx(num_bytes, abs=4)
    assert json.loads(data)["model"] == "stub-mx"
    assert body(endpoint, plan, is_stream=True, num_bytes=num_bytes, number=4) != data
