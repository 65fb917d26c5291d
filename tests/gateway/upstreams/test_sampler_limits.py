"""A request for which vLLM's sampler has no room is refused before it reaches, and ends, the engine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from agentspec.gateway.call import Endpoint
from tests.gateway.support.limited_fields import PERHAPS_TOO_LONG, SHORT_ENOUGH, TOO_LONG
from tests.gateway.support.live import chat_body, post, serving_app, serving_proxy


@dataclass
class Engine:
    """A stand-in for a vLLM server. With ``runner`` it has the plugin, which names its model runner."""

    runner: str | None = None
    bodies: list[dict[str, Any]] = field(default_factory=list)
    num_asked: int = 0

    def app(self) -> Starlette:
        """Return the server."""
        paths = (*Endpoint, "/inference/v1/generate")
        routes = [Route(path, self._answer, methods=["POST"]) for path in paths]
        return Starlette(routes=[Route("/agentspec/status", self._status), *routes])

    async def _answer(self, request: Request) -> JSONResponse:
        self.bodies.append(await request.json())
        return JSONResponse({"choices": []})

    async def _status(self, request: Request) -> JSONResponse:
        self.num_asked += 1
        told = {"agentspec": "1", "model_runner": self.runner}
        return JSONResponse(told) if self.runner else JSONResponse({"error": {"message": "?"}}, 404)


@dataclass
class Served:
    """A gateway in front of an engine."""

    root: str
    engine: Engine

    def post(self, fields: dict[str, Any], path: str = Endpoint.CHAT) -> httpx.Response:
        """Send a request with these fields."""
        self.engine.bodies.clear()
        return post(self.root, chat_body(**fields), path)


@contextmanager
def serving(runner: str | None, **settings: Any) -> Iterator[Served]:
    engine = Engine(runner)
    with serving_app(engine.app()) as url, serving_proxy(url, settings=settings) as root:
        yield Served(root, engine)


@pytest.fixture(scope="module")
def unknown() -> Iterator[Served]:
    """Yield a gateway in front of an engine without the plugin."""
    with serving(None) as served:
        yield served


@pytest.fixture(scope="module")
def with_v2() -> Iterator[Served]:
    """Yield a gateway in front of a vLLM with the plugin and model runner V2."""
    with serving("V2") as served:
        yield served


def check_refused(answer: httpx.Response, param: str, most: int) -> None:
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", param)
    assert error["message"].startswith(f"{param} has ")
    assert error["message"].endswith(f"vLLM has room for {most}: send fewer")


@pytest.mark.parametrize(("fields", "param", "most"), [*TOO_LONG, *PERHAPS_TOO_LONG])
def test_an_unknown_engine_gets_nothing_that_may_end_it(
    unknown: Served, fields: dict[str, Any], param: str, most: int
) -> None:
    most = 120 if param == "stop_token_ids" else most  # eight are left for the model's own
    check_refused(unknown.post(fields), param, most)
    assert not unknown.engine.bodies


@pytest.mark.parametrize("fields", SHORT_ENOUGH)
def test_what_fits_is_passed_on_without_asking_the_engine(unknown: Served, fields: dict[str, Any]) -> None:
    num_asked = unknown.engine.num_asked
    assert unknown.post(fields).status_code == 200
    assert {name: unknown.engine.bodies[0][name] for name in fields} == fields
    assert unknown.engine.num_asked == num_asked


@pytest.mark.parametrize("path", [*Endpoint, "/inference/v1/generate"])
def test_every_way_to_generate_is_checked(unknown: Served, path: str) -> None:
    fields, param, most = TOO_LONG[0]
    check_refused(unknown.post(fields, path), param, most)
    assert not unknown.engine.bodies


@pytest.mark.parametrize(("fields", "param", "most"), TOO_LONG)
def test_a_runner_v2_with_the_plugin_does_not_get_what_has_no_room_for_sure(
    with_v2: Served, fields: dict[str, Any], param: str, most: int
) -> None:
    check_refused(with_v2.post(fields), param, most)
    assert not with_v2.engine.bodies


@pytest.mark.parametrize("fields", [fields for fields, _, _ in PERHAPS_TOO_LONG])
def test_a_runner_v2_with_the_plugin_counts_the_rest_itself(with_v2: Served, fields: dict[str, Any]) -> None:
    assert with_v2.post(fields).status_code == 200
    assert with_v2.engine.num_asked == 1  # for all requests


@pytest.mark.parametrize(("runner", "sends_xargs"), [("V1", True), (None, False)])
def test_an_engine_without_these_limits_gets_all(runner: str | None, sends_xargs: bool) -> None:
    with serving(runner, sends_xargs=sends_xargs) as served:
        for fields, _, _ in (*TOO_LONG, *PERHAPS_TOO_LONG):
            assert served.post(fields).status_code == 200
    assert served.engine.num_asked == (1 if runner else 0)
