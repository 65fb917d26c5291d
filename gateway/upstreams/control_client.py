"""HTTP client for the control channel of an engine with our vLLM plugin: its counters and its trees.

Engines without the plugin have no such channel. Reading counters never fails and never takes long. Commands
that change trees (evict, save, ...) raise an error that states the reason.
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
from agentspec.wire import OWN_PREFIX

CONNECT_TIMEOUT_S = 5.0
# common servers close an idle connection after 5 s: stay below, so as not to reuse one that was just closed
KEEPALIVE_S = 2.0
FIGURES_TIMEOUT_S = 1.0
FRESH_S = 1.0
ABSENT_S = 30.0  # an engine without the plugin may be replaced by one that has it
COMMAND_TIMEOUT_S = 600.0  # gigabytes to a slow disk

logger = logging.getLogger("agentspec.gateway")


@contextmanager
def translated_errors(root: str) -> Iterator[None]:
    """Convert errors of httpx to UpstreamTimeoutError and UpstreamDownError, which name ``root``."""
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
    """A client for ``/agentspec/...`` of the engine at ``root``, to be used from one event loop.

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
        """Return the counters per stage: at most a second old if the engine responds, else the last known.

        None if the engine has no plugin, or has not responded yet.
        """
        async with self._asking:
            if time.monotonic() >= self._stale_from:
                await self._refresh()
        return self._stages

    async def evict(self, stage: StageKey) -> dict[str, Any]:
        """Clear the stage's own tree. The other commands raise the same errors.

        Raises:
            RequestError: the engine rejected the request.
            EngineError: the engine has no plugin, rejects our token, failed, or can't be reached.
        """
        return await self._command("evict", {"tenant": stage.tenant, "stage": stage.name})

    async def trace(self, tenant: str | None, request_id: str) -> list[Any] | None:
        """Return the decode steps of a traced request of the tenant, or of any tenant if that is None.

        None if the engine has no such trace.
        """
        steps = (await self._command("trace", {"tenant": tenant, "id": request_id})).get("steps")
        return steps if isinstance(steps, list) else None

    async def warm(self, tenant: str, outputs: Sequence[PastOutput]) -> dict[str, Any]:
        """Insert past outputs of the tenant into the trees."""
        described = [{"stage": output.stage.name, "response": output.text} for output in outputs]
        return await self._command("warm", {"tenant": tenant, "outputs": described})

    async def save(self, path: str | None) -> dict[str, Any]:
        """Write all trees to a file on the engine's machine; None = the file it was configured with."""
        return await self._command("save", {} if path is None else {"path": path})

    async def load(self, path: str | None) -> dict[str, Any]:
        """Add the trees of a file that ``save`` wrote."""
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
            if not self._is_failing:  # log once, not at every scrape
                logger.warning("no figures from the engine: %s", str(error) or type(error).__name__)
            self._is_failing = True
            self._has_plugin = False  # the server that starts next may be another one
        self._stale_from = time.monotonic() + fresh_s

    async def _ask(self) -> Stages | None:
        if not self._has_plugin:
            # /agentspec/stages does not identify the plugin: a gateway serves it too, for one tenant
            status = await self._client.get(f"{self._root}{OWN_PREFIX}status")
            if status.status_code == httpx.codes.NOT_FOUND:
                return None
            status.raise_for_status()
            self._has_plugin = True
        answer = await self._client.get(f"{self._root}{OWN_PREFIX}stages")
        return read_stages(answer.raise_for_status().content)

    async def _command(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        with translated_errors(self._root):
            answer = await self._client.post(f"{self._root}{OWN_PREFIX}{name}", json=arguments)
        if answer.status_code in (httpx.codes.NOT_FOUND, httpx.codes.METHOD_NOT_ALLOWED):
            raise NoControlError(f"the engine at {self._root} does not run the agentspec plugin")
        body = _body_of(answer)
        if answer.is_success:
            return body
        reason = body.get("error", {}).get("message") or f"status {answer.status_code}"
        if answer.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
            raise EngineError(f"the engine at {self._root} refuses the gateway's control token: {reason}")
        if answer.is_client_error:
            raise RequestError(reason)
        raise EngineError(f"the engine at {self._root} failed: {reason}")


def _body_of(answer: httpx.Response) -> dict[str, Any]:
    """Return the JSON object of a response; errors have OpenAI's form. Raises EngineError if malformed."""
    try:
        body = answer.json()
        if isinstance(body, dict) and isinstance(body.get("error", {}), dict):
            return body
    except ValueError:
        pass
    raise EngineError(f"the control channel of the engine answered {answer.status_code} and nothing of ours")
