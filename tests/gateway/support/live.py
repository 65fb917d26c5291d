"""A real gateway on a real port, for the duration of a test."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import openai
from starlette.types import ASGIApp

from agentspec.gateway import (
    ApiKeys,
    EmbeddedUpstream,
    Fleet,
    FleetSettings,
    GatewaySettings,
    GracefulShutdown,
    RuntimeConfig,
    Upstream,
    UpstreamSettings,
    create_app,
)
from agentspec.gateway.auth.api_keys import digest_of
from agentspec.gateway.server import GatewayServer, bind
from agentspec.generation import Engine

TIMEOUT_S = 60.0  # only a guard against hanging: the machine may be busy


class GatewayUrl(str):
    """The root URL of a gateway with an event loop in this process."""

    loop: asyncio.AbstractEventLoop

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Pause the gateway's event loop, so that its time limits start only after all data was sent."""
        is_paused, is_over = threading.Event(), threading.Event()

        def pause() -> None:
            is_paused.set()
            is_over.wait(TIMEOUT_S)

        self.loop.call_soon_threadsafe(pause)
        assert is_paused.wait(TIMEOUT_S)
        try:
            yield
        finally:
            is_over.set()


def serving(
    upstream: Upstream,
    *,
    grace_s: float = 0.2,
    keys: ApiKeys | None = None,
    admin_key: str | None = None,
    settings: GatewaySettings | None = None,
    **options: Any,
) -> Any:
    """Yield the root URL of a gateway in front of ``upstream``."""
    admin = digest_of(admin_key) if admin_key else None
    runtime = RuntimeConfig(keys or ApiKeys(), admin, settings or GatewaySettings())
    shutdown = GracefulShutdown()
    app = create_app(upstream, runtime=runtime, shutdown=shutdown, **options)
    return serving_app(app, shutdown, grace_s=grace_s, runtime=runtime)


@contextmanager
def serving_app(
    app: ASGIApp,
    shutdown: GracefulShutdown | None = None,
    *,
    grace_s: float = 0.2,
    port: int = 0,
    runtime: RuntimeConfig | None = None,
) -> Iterator[GatewayUrl]:
    """Yield the root URL of any ASGI application."""
    shutdown, ready = shutdown or GracefulShutdown(), threading.Event()
    with bind("127.0.0.1", port) as bound:
        url = GatewayUrl(f"http://127.0.0.1:{bound.getsockname()[1]}")

        def on_ready() -> None:
            url.loop = asyncio.get_running_loop()
            ready.set()

        server = GatewayServer(app, shutdown, grace_s=grace_s, on_ready=on_ready, runtime=runtime)
        thread = threading.Thread(target=server.run, args=([bound],))
        thread.start()
        assert ready.wait(TIMEOUT_S)
        try:
            yield url
        finally:
            server.should_exit = True
            thread.join(TIMEOUT_S)
            assert not thread.is_alive()


def serving_engine(engine: Engine, **options: Any) -> Any:
    """Yield the root URL of a gateway in front of an engine in this process."""
    return serving(EmbeddedUpstream(engine), **options)


def serving_proxy(
    *urls: str, settings: dict[str, Any] | None = None, fleet: dict[str, Any] | None = None, **options: Any
) -> Any:
    """Yield the root URL of a gateway in front of other servers, all with the same ``settings``.

    Their names do not depend on their ports, so a stage has the same engine in every run.
    """
    named = [{"name": f"engine-{number}", **(settings or {})} for number in range(len(urls))]
    upstreams = [UpstreamSettings(url=url, **one) for url, one in zip(urls, named, strict=True)]
    return serving(Fleet(FleetSettings(upstreams=upstreams, **(fleet or {}))), **options)


@contextmanager
def client_of(url: str, **options: Any) -> Iterator[openai.OpenAI]:
    """Yield the real client, without retries."""
    with openai.OpenAI(
        base_url=f"{url}/v1", max_retries=0, timeout=TIMEOUT_S, **{"api_key": "none", **options}
    ) as client:
        yield client


def post(url: str, body: Any, path: str = "/v1/chat/completions", **headers: str) -> httpx.Response:
    """Send a POST request, as curl would. ``x_agentspec_stage="..."`` is a header."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    content = {"content": body} if isinstance(body, bytes) else {"json": body}
    return httpx.post(f"{url}{path}", headers=named, timeout=TIMEOUT_S, trust_env=False, **content)


def chat_body(**fields: Any) -> dict[str, Any]:
    """Return a small chat body."""
    return {"model": "scripted", "messages": [{"role": "user", "content": "hi"}], **fields}
