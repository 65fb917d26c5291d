"""Supervises an engine that this process started, and restarts it if it dies. Independent of vLLM.

While it starts, clients are asked to retry.
"""

from __future__ import annotations

import asyncio
import logging
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

import httpx
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from agentspec.errors import EngineError
from agentspec.gateway.engine_process.child_process import EngineCommand, EngineSubprocess
from agentspec.gateway.errors import error_body
from agentspec.gateway.http.context import ensure_context
from agentspec.gateway.http.cors import cors_headers, is_preflight

POLL_S = 0.5  # while it starts
WATCH_S = 5.0  # while it runs
HEALTH_TIMEOUT_S = 10.0
PROGRESS_S = 15.0
FIRST_DELAY_S, LONGEST_DELAY_S = 1.0, 60.0
STEADY_S = 120.0  # uptime after which the number of failures is reset

logger = logging.getLogger("agentspec.gateway")
RETRY_AFTER = {"retry-after": "5"}
METRICS = "/metrics"  # the gateway's own metrics are always available


class EngineStartError(EngineError):
    """The engine never became ready."""


@dataclass(frozen=True, slots=True)
class EngineTimeouts:
    """Time limits of an engine, in seconds.

    Attributes:
        start_timeout_s: until it answers ``/health``.
        silence_s: without an answer to ``/health``, once it has answered.
    """

    start_timeout_s: float = 900.0
    silence_s: float = 60.0


class EngineSupervisor:
    """The engine at ``root``, which reports on ``/health`` when it is ready.

    Args:
        command: starts the engine.
        root: the engine's URL, without ``/v1``.
    """

    def __init__(
        self,
        command: EngineCommand,
        root: str,
        *,
        timeouts: EngineTimeouts | None = None,
    ) -> None:
        self.command = command
        self._health_url = f"{root}/health"
        self._timeouts = timeouts or EngineTimeouts()
        self._has_served = False
        self.is_ready = False

    @property
    def phase(self) -> str:
        """``"ok"``, ``"starting"`` or ``"restarting"``."""
        if self.is_ready:
            return "ok"
        return "restarting" if self._has_served else "starting"

    async def run(self, on_ready: Callable[[], None] | None = None) -> None:
        """Keep the engine running until cancelled. On return all its processes have ended.

        Args:
            on_ready: called once, when it is ready for the first time.

        Raises:
            EngineStartError: it did not become ready the first time. Later failures cause a restart.
        """
        num_failures = 0
        async with httpx.AsyncClient(timeout=HEALTH_TIMEOUT_S, trust_env=False) as client:
            while True:
                async with EngineSubprocess(self.command) as child:
                    failure = await self._become_ready(child, client)
                    ready_at = time.monotonic()
                    if failure is None:
                        self._note_ready(on_ready)
                        failure = await self._serve(child, client)
                if not self._has_served:
                    raise EngineStartError(_start_failure(failure, child))
                if time.monotonic() - ready_at >= STEADY_S:
                    num_failures = 0
                delay_s = back_off_s(num_failures)
                logger.error("the engine %s; it is started again in %.1f s", failure, delay_s)
                num_failures += 1
                await asyncio.sleep(delay_s)

    async def _become_ready(self, child: EngineSubprocess, client: httpx.AsyncClient) -> str | None:
        """Wait until the engine answers and return None, or return the failure."""
        start = time.monotonic()
        next_report_s = PROGRESS_S
        while not await child.ends_within(POLL_S):
            if await self._answers(client):
                return None
            waited_s = time.monotonic() - start
            if waited_s >= self._timeouts.start_timeout_s:
                return f"was not ready after {waited_s:.0f} s"
            if waited_s >= next_report_s:
                next_report_s += PROGRESS_S
                said = child.output.last_line or "it has said nothing yet"
                logger.info("the engine has been starting for %.0f s: %s", waited_s, said)
        return child.ending

    def _note_ready(self, on_ready: Callable[[], None] | None) -> None:
        if self._has_served:
            logger.info("the engine is ready again")
        elif on_ready is not None:
            on_ready()
        self._has_served = True

    async def _serve(self, child: EngineSubprocess, client: httpx.AsyncClient) -> str:
        """Wait until the engine dies or stops answering; return the failure."""
        self.is_ready = True
        try:
            answered_at = time.monotonic()
            while not await child.ends_within(min(WATCH_S, self._timeouts.silence_s)):
                if await self._answers(client):
                    answered_at = time.monotonic()
                elif time.monotonic() - answered_at >= self._timeouts.silence_s:
                    return f"did not answer {self._health_url} for {self._timeouts.silence_s:.0f} s"
            return child.ending
        finally:
            self.is_ready = False

    async def _answers(self, client: httpx.AsyncClient) -> bool:
        try:
            return (await client.get(self._health_url)).is_success
        except httpx.HTTPError:
            return False


def back_off_s(num_failures: int) -> float:
    """Return the delay before the next start. It doubles with each failure; up to half of it is random."""
    longest_s = min(LONGEST_DELAY_S, FIRST_DELAY_S * 2.0 ** min(num_failures, 30))
    return longest_s * random.uniform(0.5, 1.0)


def run_until_signal(engine: EngineSupervisor, *, on_ready: Callable[[], None] | None = None) -> None:
    """Keep ``engine``, which serves clients directly, running until a signal. Raises EngineStartError."""

    async def run() -> None:
        running = asyncio.ensure_future(engine.run(on_ready))
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, running.cancel)
        await asyncio.wait({running})
        if not running.cancelled():
            running.result()

    asyncio.run(run())


def _start_failure(failure: str, child: EngineSubprocess) -> str:
    lines = "".join(f"\n  {line}" for line in child.output.last_lines)
    return f"the engine did not start: it {failure}. Its last lines:{lines or ' none'}"


class ReadinessMiddleware:
    """Answers 503 until ``engine`` is ready, so that no request waits or fails on it."""

    def __init__(self, app: ASGIApp, engine: EngineSupervisor, origins: Callable[[], frozenset[str]]) -> None:
        self._app = app
        self._engine = engine
        self._origins = origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if scope["type"] != "http" or self._engine.is_ready or scope["path"] == METRICS:
            await self._app(scope, receive, send)
            return
        headers = dict(RETRY_AFTER)
        if origins := self._origins():
            asked = ensure_context(scope, send).headers
            if is_preflight(scope["method"], asked, origins):
                await self._app(scope, receive, send)
                return
            allowed = cors_headers(asked, origins)
            headers |= {name.decode(): value.decode("latin-1") for name, value in allowed}
        phase = self._engine.phase
        body = {"status": phase}
        if scope["path"] != "/health":
            body = error_body(
                503, f"the engine is {phase}: try again in some seconds", code="engine_starting"
            )
        await JSONResponse(body, 503, headers)(scope, receive, send)
