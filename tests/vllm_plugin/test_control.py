from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from agentspec.vllm_plugin.control import BODY_LIMIT_BYTES, TOKEN_VARIABLE, Control


class Engine:
    """vLLM's engine client with two workers, the second with the forest."""

    def __init__(self) -> None:
        self.engine_core: Any = self  # one rank
        self.asked: list[tuple[str, Any]] = []
        self.answers: list[dict[str, Any]] = []
        self.jobs: set[str] = set()

    async def call_utility_all_async(self, *args: Any) -> list[list[str | None]]:
        method, name, timeout_s, (command, arguments, job), options = args
        assert (method, name, timeout_s, options) == ("collective_rpc", "agentspec_control", None, None)
        self.asked.append((command, json.loads(arguments)))
        self.jobs.add(job)
        return [[None, json.dumps(self.answers.pop(0))]]


async def other(request: Request) -> PlainTextResponse:
    return PlainTextResponse("vLLM's")


@pytest.fixture
def engine() -> Engine:
    return Engine()


def client(engine: Engine, host: str = "127.0.0.1") -> httpx.AsyncClient:
    app = Starlette(routes=[Route("/health", other), Route("/v1/models", other)])
    app.state = SimpleNamespace(engine_client=engine)
    app.add_middleware(Control)
    return httpx.AsyncClient(transport=httpx.ASGITransport(app, client=(host, 1)), base_url="http://vllm")


async def test_commands_reach_the_worker_and_answers_the_client(engine: Engine) -> None:
    engine.answers = [{"freed_bytes": 5}]
    answer = await client(engine).post("/agentspec/evict", json={"tenant": "t", "stage": "a/b"})
    assert (answer.status_code, answer.json()) == (200, {"freed_bytes": 5})
    assert engine.asked == [("evict", {"tenant": "t", "stage": "a/b"})]


async def test_what_takes_long_is_waited_for(engine: Engine) -> None:
    engine.answers = [{"job": "x"}, {"job": "x"}, {"job": "x"}, {"path": "x", "num_outputs": 9}]
    answer = await client(engine).post("/agentspec/save")
    assert answer.json() == {"path": "x", "num_outputs": 9}
    assert engine.asked == [("save", {}), *[("job", {})] * 3]
    assert len(engine.jobs) == 1


class Ranks:
    """vLLM's client of two data-parallel ranks; the forest of the second is in its second worker."""

    def __init__(self, *answers: tuple[dict[str, Any], dict[str, Any]]) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    async def call_utility_all_async(self, *args: Any) -> list[list[str | None]]:
        method, name, timeout_s, (command, _, _), options = args
        assert (method, name, timeout_s, options) == ("collective_rpc", "agentspec_control", None, None)
        self.asked.append(command)
        first, second = self.answers.pop(0)
        return [[json.dumps(first)], [None, json.dumps(second)]]


async def test_the_figures_are_those_of_all_data_parallel_ranks(engine: Engine) -> None:
    engine.engine_core = Ranks(({"age_s": 0.1, "stages": ["a", "b"]}, {"age_s": 0.2, "stages": ["a"]}))
    answer = await client(engine).get("/agentspec/stages")
    assert answer.json() == {"age_s": 0.1, "stages": ["a", "b", "a"]}


async def test_the_figures_of_the_ranks_corpora_are_summed(engine: Engine) -> None:
    ranks = [{"num_published": 3, "lag_s": 0.5}, {"num_published": 4, "lag_s": 0.25}]
    for command in ("status", "stages"):
        first, second = ({"stages": [], "corpus": one} for one in ranks)
        engine.engine_core = Ranks((first, second))
        answer = (await client(engine).get(f"/agentspec/{command}")).json()
        assert answer["corpus"] == {"num_published": 7, "lag_s": 0.5}


async def test_a_command_is_done_once_every_rank_has_done_it(engine: Engine) -> None:
    job = {"job": "x"}
    gone = {"error": {"message": "there is no job 'x'"}}  # a rank gives an answer once
    saved = [{"path": "forest", "num_outputs": 9}, {"path": "forest.1", "num_outputs": 2}]
    engine.engine_core = Ranks((job, job), (saved[0], job), (gone, job), (gone, saved[1]))
    answer = await client(engine).post("/agentspec/save")
    assert answer.json() == {"path": "forest", "num_outputs": 11}
    assert engine.engine_core.asked == ["save", "job", "job", "job"]


@pytest.mark.parametrize(
    ("command", "answers", "expected"),
    [
        ("evict", ({"freed_bytes": 5}, {"freed_bytes": 7}), {"freed_bytes": 12}),
        ("trace", ({"steps": None}, {"steps": ["one"]}), {"steps": ["one"]}),
        ("trace", ({"steps": None}, {"steps": None}), {"steps": None}),
        ("warm", ({"num_outputs": 3}, {"num_outputs": 3}), {"num_outputs": 3}),  # each has learned them all
    ],
)
async def test_the_answer_of_all_ranks(
    engine: Engine, command: str, answers: tuple[dict[str, Any], dict[str, Any]], expected: dict[str, Any]
) -> None:
    engine.engine_core = Ranks(answers)
    assert (await client(engine).post(f"/agentspec/{command}", json={})).json() == expected


async def test_an_error_of_any_rank_is_the_clients(engine: Engine) -> None:
    engine.engine_core = Ranks(({"num_outputs": 3}, {"error": {"message": "the disk is full"}}))
    answer = await client(engine).post("/agentspec/load", json={})
    assert (answer.status_code, answer.json()["error"]["message"]) == (400, "the disk is full")


async def test_the_status_names_both_versions(engine: Engine) -> None:
    engine.answers = [{"agentspec": "0.1.0"}]
    assert set((await client(engine).get("/agentspec/status")).json()) == {"agentspec", "vllm"}


async def test_an_error_of_the_worker_is_the_clients(engine: Engine) -> None:
    engine.answers = [{"error": {"message": "there is no job 4"}}]
    answer = await client(engine).post("/agentspec/warm", json={})
    assert (answer.status_code, answer.json()["error"]["message"]) == (400, "there is no job 4")


async def test_everything_else_is_vllms(engine: Engine) -> None:
    for path in ("/health", "/v1/models"):
        assert (await client(engine).get(path)).text == "vLLM's"
    assert (await client(engine).get("/agentspec")).status_code == 404
    assert engine.asked == []


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/agentspec/save", 405), ("POST", "/agentspec/stages", 405), ("GET", "/agentspec/nothing", 404)],
)
async def test_wrong_routes_are_told_so(engine: Engine, method: str, path: str, status: int) -> None:
    answer = await client(engine).request(method, path)
    assert answer.status_code == status
    assert path.rpartition("/")[2] in answer.json()["error"]["message"]


@pytest.mark.parametrize("body", [b"[1]", b"{", b"\xff"])
async def test_a_body_must_be_an_object(engine: Engine, body: bytes) -> None:
    assert (await client(engine).post("/agentspec/warm", content=body)).status_code == 400
    assert engine.asked == []


async def test_a_body_has_a_limit(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentspec.vllm_plugin.control.BODY_LIMIT_BYTES", 10)
    answer = await client(engine).post("/agentspec/warm", content=b'{"tenant": "a long one"}')
    assert answer.status_code == 400
    assert "10 bytes" in answer.json()["error"]["message"]
    assert BODY_LIMIT_BYTES > 10


async def test_without_a_token_only_this_machine_is_answered(engine: Engine) -> None:
    engine.answers = [{}, {}]
    assert (await client(engine, "::1").get("/agentspec/status")).status_code == 200
    for host in ("10.0.0.7", "2001:db8::1", "testclient"):
        assert (await client(engine, host).get("/agentspec/status")).status_code == 403
    origin = {"origin": "http://evil.example"}
    assert (await client(engine).post("/agentspec/save", headers=origin)).status_code == 403
    assert len(engine.asked) == 1


async def test_a_file_is_named_with_a_token_alone(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in ("/agentspec/save", "/agentspec/load"):
        answer = await client(engine).post(path, json={"path": "/home/someone/.profile"})
        assert answer.status_code == 403
        assert TOKEN_VARIABLE in answer.json()["error"]["message"]
    assert engine.asked == []
    monkeypatch.setenv(TOKEN_VARIABLE, "s3cret")
    engine.answers = [{}]
    headers = {"authorization": "Bearer s3cret"}
    assert (
        await client(engine).post("/agentspec/save", json={"path": "x"}, headers=headers)
    ).status_code == 200


async def test_with_a_token_everybody_needs_it(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, "s3cret")
    engine.answers = [{}]
    for authorization in ("", "Bearer", "Bearer wrong", "s3cret2", "Bearer s3cret "):
        headers = {"authorization": authorization}
        assert (await client(engine).get("/agentspec/status", headers=headers)).status_code == 403
    assert engine.asked == []
    headers = {"authorization": "Bearer s3cret"}
    assert (await client(engine, "10.0.0.7").get("/agentspec/status", headers=headers)).status_code == 200
