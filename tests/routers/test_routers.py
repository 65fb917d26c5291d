"""What the presets of ``deploy/routers`` promise, with the real programs."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.gateway.support.live import client_of
from tests.routers.support.engines import EngineProcess
from tests.routers.support.patient_engine import TIMEOUT_S, patient_engine
from tests.routers.support.processes import wait_until
from tests.routers.support.programs import FOLDER_VARIABLE, Router, routed

if FOLDER_VARIABLE not in os.environ:
    pytest.skip("run by make test-routers, which installs the routers", allow_module_level=True)

MODEL = "agentspec-sql"
STAGES = [f"flow/{name}" for name in "abcdefghijkl"]
QUESTIONS = [
    "Question: How many orders are there?",
    "Question: How many users are there?",
    "Question: What is the name of the oldest customer?",
]


def ask(client: httpx.Client, stage: str, question: str = QUESTIONS[0], session: str = "") -> str:
    """Return the answer to a question, greedily decoded."""
    tags = {"x-agentspec-stage": stage, "x-agentspec-session": session}
    answer = client.post("/v1/chat/completions", json=asked(question), headers=tags)
    assert answer.status_code == httpx.codes.OK, answer.text
    assert answer.headers["x-agentspec-stage"] == stage
    return str(answer.json()["choices"][0]["message"]["content"])


def asked(question: str) -> dict[str, Any]:
    messages = [{"role": "user", "content": question}]
    return {"model": MODEL, "messages": messages, "temperature": 0, "max_tokens": 48}


def served_by(engines: Sequence[EngineProcess], call: Callable[[], object]) -> EngineProcess:
    """Make one call and return the engine that answered it."""
    before = [engine.num_requests for engine in engines]
    call()

    def answered() -> list[EngineProcess]:
        return [one for one, count in zip(engines, before, strict=True) if one.num_requests > count]

    assert wait_until(lambda: bool(answered()))
    [engine] = answered()
    return engine


def homes_of(
    gateway: httpx.Client, engines: Sequence[EngineProcess], stages: Sequence[str] = STAGES
) -> dict[str, EngineProcess]:
    """Return the engine of each stage."""
    return {stage: served_by(engines, partial(ask, gateway, stage)) for stage in stages}


def test_a_stage_has_one_engine_and_stages_spread(
    gateway: httpx.Client, router: Router, engines: list[EngineProcess]
) -> None:
    homes = homes_of(gateway, engines)
    assert homes_of(gateway, engines) == homes_of(gateway, engines) == homes
    assert len(set(homes.values())) > 1
    if router.keeps_headers:  # the engine knows the stage, too
        assert all(stage in engine.stages for stage, engine in homes.items())


def test_answers_are_those_of_an_engine(gateway: httpx.Client, engines: list[EngineProcess]) -> None:
    for stage, question in zip(STAGES, QUESTIONS, strict=False):
        direct = {ask(engine.client, stage, question) for engine in engines}
        assert direct == {ask(gateway, stage, question)}


def test_a_stream_has_the_same_text(gateway: httpx.Client) -> None:
    with client_of(str(gateway.base_url)) as client:
        for question in QUESTIONS:
            stage = {"x-agentspec-stage": STAGES[0]}
            stream = client.chat.completions.create(**asked(question), stream=True, extra_headers=stage)
            text = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
            assert text == ask(gateway, STAGES[0], question)


def test_tags_arrive_and_each_event_before_the_next_is_made(router: Router, tmp_path: Path) -> None:
    with patient_engine() as engine, routed(router, [engine.url], tmp_path) as gateway:
        words = []
        body = {**asked(QUESTIONS[0]), "stream": True, "vllm_xargs": {"other": "kept"}}
        tags = {"x-agentspec-stage": STAGES[0], "x-agentspec-session": "s"}
        with gateway.stream("POST", "/v1/chat/completions", json=body, headers=tags) as answer:
            for line in answer.iter_lines():
                if line.startswith("data: {"):
                    words.append(json.loads(line[6:])["choices"][0]["delta"]["content"])
                    engine.got_first.set()
    assert words == ["first", " second"]
    assert not engine.waited_in_vain
    [received] = engine.bodies
    assert received["messages"] == body["messages"]
    tags_of = received["vllm_xargs"]  # vLLM's plugin reads them there
    assert (tags_of["agentspec_stage"], tags_of["agentspec_session"]) == (STAGES[0], "s")
    assert tags_of["other"] == "kept"


def test_a_client_that_leaves_ends_the_answer_at_the_engine(router: Router, tmp_path: Path) -> None:
    with patient_engine(is_endless=True) as engine, routed(router, [engine.url], tmp_path) as gateway:
        body = {**asked(QUESTIONS[0]), "stream": True}
        with gateway.stream("POST", "/v1/chat/completions", json=body) as answer:
            next(line for line in answer.iter_lines() if line.startswith("data: {"))
            engine.got_first.set()
        assert engine.was_left.wait(TIMEOUT_S)


def test_sessions_stay_together_by_the_other_policy(
    router: Router, engines: list[EngineProcess], tmp_path: Path
) -> None:
    urls = [engine.url for engine in engines]
    homes = {}
    with routed(router, urls, tmp_path, AGENTSPEC_ROUTING__POLICY="session") as gateway:
        for session in "abcdefghijkl":
            calls = [partial(ask, gateway, stage, session=session) for stage in STAGES[:2]]
            [homes[session]] = {served_by(engines, call) for call in calls}
    assert len(set(homes.values())) > 1


def test_an_engine_s_own_channel_is_not_reached(gateway: httpx.Client) -> None:
    """Its figures would be those of any one engine. The gateway counts what the responses report."""
    stage = "flow/counted"
    for _ in range(3):
        ask(gateway, stage)
    figures = gateway.get("/agentspec/stages").json()["stages"]
    [counted] = [one for one in figures if one["stage"] == stage]
    assert counted["num_requests"] == 3
    assert counted["num_output_tokens"] > 0


def test_the_stages_of_a_killed_engine_move(gateway: httpx.Client, engines: list[EngineProcess]) -> None:
    before = homes_of(gateway, engines)
    killed = before[STAGES[0]]
    others = [engine for engine in engines if engine is not killed]
    moved = [stage for stage, home in before.items() if home is killed]
    stayed = {stage: home for stage, home in before.items() if home is not killed}
    killed.kill()
    try:
        assert homes_of(gateway, others, [*moved, *stayed]).items() >= stayed.items()  # no call is lost
        assert wait_until(partial(are_settled, gateway, others))  # once the router knows of the death
    finally:
        killed.start()
    assert wait_until(lambda: set(homes_of(gateway, engines, moved).values()) == {killed})
    assert homes_of(gateway, engines) == before


def are_settled(gateway: httpx.Client, engines: Sequence[EngineProcess]) -> bool:
    """True if three rounds of calls have the same engine for each stage."""
    first = homes_of(gateway, engines)
    return all(homes_of(gateway, engines) == first for _ in range(2))
