"""Web pages of other origins: none allowed by default, and named ones, by raw requests and by a browser."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from agentspec.errors import ConfigError
from agentspec.gateway import (
    ApiKeys,
    EmbeddedUpstream,
    Fleet,
    FleetSettings,
    RuntimeConfig,
    UpstreamSettings,
    create_app,
)
from agentspec.gateway.auth.api_keys import digest_of
from agentspec.gateway.config_file import load_settings
from agentspec.gateway.engine_process.supervisor import ReadinessMiddleware
from tests.gateway.support.live import TIMEOUT_S, chat_body, serving_app
from tests.gateway.support.scripted import ScriptedEngine

PAGE = "https://app.example"
CHAT = "/v1/chat/completions"
OTHERS = (None, "https://evil.example", "https://app.example.evil.example", "http://app.example", "null")


def runtime(*origins: str) -> RuntimeConfig:
    return RuntimeConfig(ApiKeys.parse(["ka=acme"]), digest_of("boss"), cors_origins=frozenset(origins))


def app(*origins: str) -> ASGIApp:
    return create_app(EmbeddedUpstream(ScriptedEngine()), runtime=runtime(*origins))


def ask(
    root: str, method: str = "POST", path: str = CHAT, origin: str | None = PAGE, **options: Any
) -> httpx.Response:
    headers = options.pop("headers", {}) | ({} if origin is None else {"origin": origin})
    return httpx.request(method, root + path, headers=headers, timeout=TIMEOUT_S, trust_env=False, **options)


def preflight(root: str, path: str = CHAT, origin: str | None = PAGE) -> httpx.Response:
    headers = {
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type,x-agentspec-stage",
    }
    return ask(root, "OPTIONS", path, origin, headers=headers)


def is_open(answer: httpx.Response) -> bool:
    return any(name.startswith("access-control-") for name in answer.headers)


def test_it_is_off_by_default() -> None:
    with serving_app(app()) as root:
        assert preflight(root).status_code == 401
        for answer in (preflight(root), ask(root), ask(root, "GET", "/health")):
            assert not is_open(answer)
            assert "vary" not in answer.headers


@pytest.mark.parametrize("path", [CHAT, "/stages/a/v1/chat/completions", "/agentspec/stages/a", "/v1/models"])
def test_a_preflight_request_of_a_named_page_needs_no_key(path: str) -> None:
    with serving_app(app(PAGE, "http://localhost:3000")) as root:
        answer = preflight(root, path)
        assert (answer.status_code, answer.content) == (204, b"")
        assert answer.headers["access-control-allow-origin"] == PAGE
        assert "POST" in answer.headers["access-control-allow-methods"]
        assert (
            answer.headers["access-control-allow-headers"] == "authorization,content-type,x-agentspec-stage"
        )
        assert "origin" in answer.headers["vary"]
        for origin in OTHERS:
            refused = preflight(root, path, origin)
            assert refused.status_code == 401
            assert not is_open(refused)


def test_every_answer_to_a_named_page_can_be_read_and_no_other() -> None:
    with serving_app(app(PAGE)) as root:
        key = {"authorization": "Bearer ka", "x-agentspec-stage": "a"}
        for answer, status in (
            (ask(root, json=chat_body(), headers=key), 200),
            (ask(root, json=chat_body(stream=True), headers=key), 200),
            (ask(root, json=chat_body()), 401),
            (ask(root, content=b"{", headers=key), 400),
            (ask(root, "GET", "/v1/none", headers=key), 404),
            (ask(root, "GET", "/agentspec/stages", headers=key), 200),
            (ask(root, "POST", "/agentspec/save", headers=key), 403),
            (ask(root, "GET", "/health"), 200),
        ):
            assert answer.status_code == status
            assert answer.headers.get_list("access-control-allow-origin") == [PAGE]
            assert answer.headers["access-control-expose-headers"] == "*"
            assert "access-control-allow-credentials" not in answer.headers
            assert answer.headers["vary"] == "origin"
        for origin in OTHERS:
            answer = ask(root, json=chat_body(), headers=key, origin=origin)
            assert answer.status_code == 200  # the browser hides it from the page
            assert not is_open(answer)


def test_every_page_may_be_meant() -> None:
    with serving_app(app("*")) as root:
        for answer in (preflight(root), ask(root), preflight(root, origin="null")):
            assert answer.headers["access-control-allow-origin"] == "*"
        assert not is_open(ask(root, origin=None))


@pytest.mark.parametrize(("origins", "allowed"), [((), []), ((PAGE,), [PAGE])])
def test_an_engine_that_lets_every_page_in_does_not_speak_for_the_gateway(
    origins: tuple[str, ...], allowed: list[str]
) -> None:
    async def answer(request: Request) -> JSONResponse:
        return JSONResponse({"choices": []}, headers={"x-engine": "its own"})

    anyone = Middleware(CORSMiddleware, allow_origins=["*"], allow_credentials=True, expose_headers=["*"])
    engine = Starlette(routes=[Route(CHAT, answer, methods=["POST"])], middleware=[anyone])
    with serving_app(engine) as url:
        assert is_open(ask(url))  # as in vLLM
        fleet = Fleet(FleetSettings(upstreams=(UpstreamSettings(url=url),)))
        with serving_app(create_app(fleet, runtime=runtime(*origins))) as root:
            through = ask(root, json=chat_body(), headers={"authorization": "Bearer ka"})
    assert through.headers["x-engine"] == "its own"
    assert through.headers.get_list("access-control-allow-origin") == allowed
    assert is_open(through) is bool(allowed)
    assert "access-control-allow-credentials" not in through.headers


class Starting:
    """An engine that is not ready."""

    is_ready = False
    phase = "starting"


def test_a_page_is_told_that_the_engine_starts() -> None:
    gate = ReadinessMiddleware(app(PAGE), Starting(), lambda: frozenset({PAGE}))
    with serving_app(gate) as root:
        assert preflight(root).status_code == 204
        waiting = ask(root)
        assert (waiting.status_code, waiting.json()["error"]["code"]) == (503, "engine_starting")
        assert waiting.headers["access-control-allow-origin"] == PAGE
        assert not is_open(ask(root, origin="https://evil.example"))


@pytest.mark.parametrize(
    "origin", ["app.example", "https://app.example/", "https://App.example", "https://*.example", "null", ""]
)
def test_an_origin_that_no_browser_sends_is_refused(origin: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTSPEC_SERVER__CORS_ORIGINS", f'["{origin}"]')
    with pytest.raises(ConfigError, match="an origin looks like"):
        load_settings(None)
