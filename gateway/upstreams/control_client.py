"""The control channel of an engine that runs our vLLM plugin: its figures and its trees, by HTTP.

Many an engine has none. Figures are for whoever watches: asking never fails and never takes long. What
changes trees (evict, save, ...) says why it failed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import httpx

from agentspec.errors import EngineError, RequestError
from agentspec.gateway.errors import NoControlError, UpstreamDownError, UpstreamTimeoutError
from agentspec.gateway.upstreams.stage_json import Stages, read_stages
from agentspec.generation import PastOutput
from agentspec.stages import StageKey

CONNECT_TIMEOUT_S = 5.0
# below the 5 s after which common servers close an idle connection: never reuse one they just closed
KEEPALIVE_S = 2.0
FIGURES_TIMEOUT_S = 1.0
FRESH_S = 1.0
ABSENT_S = 30.0  # an engine without the plugin may be replaced by one that has it
COMMAND_TIMEOUT_S = 600.0  # gigabytes to a slow disk

logger = logging.getLogger("agentspec.gateway")


@contextmanager
def told_as_ours(root: str) -> Iterator[None]:
    """Raise UpstreamTimeoutError or UpstreamDownError, which name ``root``, where httpx raises its own."""
    try:
        yield
    except httpx.TimeoutException as error:
        raise UpstreamTimeoutError(
            f"the engine at {root} did not answer in time ({type(error).__name__})"
        ) from error
    except httpx.TransportError as error:
        reason = str(error) or type(error).__name__
        raise UpstreamDownError(f"the engine at {root} can't be reached: {reason}") from error


class EngineControl:
    """Talks to ``/agentspec/...`` of the engine at ``root``. Used from one event loop.

    Args:
        token: the engine's ``$AGENTSPEC_CONTROL_TOKEN``, if it has one.
    """

    def __init__(self, root: str, token: str | None = None) -> None:
        self._root = root
        self._client = httpx.AsyncClient(
            headers={} if token is None else {"authorization": f"Bearer {token}"},
            timeout=httpx.Timeout(COMMAND_TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
            limits=httpx.Limits(keepalive_expiry=KEEPALIVE_S),
            trust_env=False,
        )
        self._stages: Stages | None = None
        self._stale_from = 0.0
        self._has_plugin = False
        self._is_failing = False
        self._asking = asyncio.Lock()

    async def stages(self) -> Stages | None:
        """Counters per stage, at most a second old if the engine answers, else the last known.

        None if it never told any: it has no plugin, or was down from the start.
        """
        async with self._asking:
            if time.monotonic() >= self._stale_from:
                await self._refresh()
        return self._stages

    async def evict(self, stage: StageKey) -> dict[str, Any]:
        """Forget what the stage's own tree has learned. Raises as every command here.

        Raises:
            RequestError: the engine refused what was asked.
            EngineError: it has no plugin, refuses our token, failed, or can't be reached.
        """
        return await self._command("evict", {"tenant": stage.tenant, "stage": stage.name})

    async def trace(self, tenant: str | None, request_id: str) -> list[Any] | None:
        """The decode steps of a traced request of the tenant, or of any if that is None.

        None if the engine has no such trace.
        """
        steps = (await self._command("trace", {"tenant": tenant, "id": request_id})).get("steps")
        return steps if isinstance(steps, list) else None

    async def warm(self, tenant: str, outputs: Sequence[PastOutput]) -> dict[str, Any]:
        """Learn past outputs of the tenant."""
        described = [{"stage": output.stage.name, "response": output.text} for output in outputs]
        return await self._command("warm", {"tenant": tenant, "outputs": described})

    async def save(self, path: str | None) -> dict[str, Any]:
        """Write all trees to a file of the engine's machine; None = the one it was configured with."""
        return await self._command("save", {} if path is None else {"path": path})

    async def load(self, path: str | None) -> dict[str, Any]:
        """Add the trees of such a file."""
        return await self._command("load", {} if path is None else {"path": path})

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def _refresh(self) -> None:
        fresh_s = FRESH_S
        try:
            async with asyncio.timeout(FIGURES_TIMEOUT_S):
                self._stages = await self._ask()
            fresh_s = FRESH_S if self._has_plugin else ABSENT_S
            self._is_failing = False
        except (httpx.HTTPError, TimeoutError, ValueError) as error:
            if not self._is_failing:  # once, not with every scrape
                logger.warning("no figures from the engine: %s", str(error) or type(error).__name__)
            self._is_failing = True
            self._has_plugin = False  # what comes up again may be another server
        self._stale_from = time.monotonic() + fresh_s

    async def _ask(self) -> Stages | None:
        if not self._has_plugin:
            # not by its stages: a gateway has those too, one tenant's
            status = await self._client.get(f"{self._root}/agentspec/status")
            if status.status_code == httpx.codes.NOT_FOUND:
                return None
            status.raise_for_status()
            self._has_plugin = True
        answer = await self._client.get(f"{self._root}/agentspec/stages")
        return read_stages(answer.raise_for_status().content)

    async def _command(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        with told_as_ours(self._root):
            answer = await self._client.post(f"{self._root}/agentspec/{name}", json=arguments)
        if answer.status_code in (httpx.codes.NOT_FOUND, httpx.codes.METHOD_NOT_ALLOWED):
            raise NoControlError(f"the engine at {self._root} does not run the agentspec plugin")
        told = _told(answer)
        if answer.is_success:
            return told
        reason = told.get("error", {}).get("message") or f"status {answer.status_code}"
        if answer.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
            raise EngineError(f"the engine at {self._root} refuses the gateway's control token: {reason}")
        if answer.is_client_error:
            raise RequestError(reason)
        raise EngineError(f"the engine at {self._root} failed: {reason}")


def _told(answer: httpx.Response) -> dict[str, Any]:
    """The JSON object of an answer, which has OpenAI's form if it is an error. Raises EngineError."""
    try:
        told = answer.json()
        if isinstance(told, dict) and isinstance(told.get("error", {}), dict):
            return told
    except ValueError:
        pass
    raise EngineError(f"the control channel of the engine answered {answer.status_code} and nothing of ours")
