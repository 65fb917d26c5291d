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

    engine_core: Any = None  # one rank

    def __init__(self) -> None:
        self.asked: list[tuple[str, Any]] = []
        self.answers: list[dict[str, Any]] = []

    async def collective_rpc(self, method: str, args: tuple[str, str]) -> list[str | None]:
        assert method == "agentspec_control"
        self.asked.append((args[0], json.loads(args[1])))
        return [None, json.dumps(self.answers.pop(0))]


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
    engine.answers = [{"job": 3}, {"job": 3}, {"job": 3}, {"path": "x", "num_outputs": 9}]
    answer = await client(engine).post("/agentspec/save")
    assert answer.json() == {"path": "x", "num_outputs": 9}
    assert engine.asked == [("save", {}), *[("job", {"job": 3})] * 3]


async def test_the_figures_are_those_of_all_data_parallel_ranks(engine: Engine) -> None:
    class EngineCore:
        async def call_utility_all_async(self, *args: Any) -> list[list[str | None]]:
            assert args == ("collective_rpc", "agentspec_control", None, ("stages", "{}"), None)
            return [
                [None, json.dumps({"age_s": 0.1, "stages": ["a", "b"]})],
                [json.dumps({"error": {"message": "it failed"}})],
                [json.dumps({"age_s": 0.2, "stages": ["a"]})],
            ]

    engine.engine_core = EngineCore()
    answer = await client(engine).get("/agentspec/stages")
    assert answer.json() == {"age_s": 0.1, "stages": ["a", "b", "a"]}
    engine.answers = [{"freed_bytes": 5}]
    assert (await client(engine).post("/agentspec/evict", json={})).json() == {"freed_bytes": 5}


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
