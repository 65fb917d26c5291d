"""HTTP client for the control channel of an engine with our vLLM plugin: its counters and its trees.

Engines without the plugin have no such channel. The engine answers between two of its steps. Reading counters
never fails and never takes long: if the engine is late, the last known ones are returned. Commands that
change trees (evict, save, ...) raise an error that states the reason.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

import httpx

from agentspec.errors import EngineError, RequestError
from agentspec.gateway.errors import NoControlError
from agentspec.gateway.upstreams.connection_pool import ConnectionPool, UpstreamRequest
from agentspec.gateway.upstreams.usage import Stages, read_figures
from agentspec.generation import PastOutput
from agentspec.stages import StageKey
from agentspec.wire import OWN_PREFIX

CONNECT_TIMEOUT_S = 5.0
PATIENCE_S = 1.0  # then the last known counters are returned; the engine's answer is still taken
FIGURES_TIMEOUT_S = 60.0  # a step that reads long prompts may take this long
FRESH_S = 1.0
ABSENT_S = 30.0  # an engine without the plugin may be replaced by one that has it
COMMAND_TIMEOUT_S = 600.0  # gigabytes to a slow disk
MOST_BYTES = 1 << 26  # of one response; the counters of a stage take some 600 bytes

logger = logging.getLogger("agentspec.gateway")
TIMEOUT_S = 3.0


class EngineControl:
    """A client for ``/agentspec/...`` of the engine at ``root``, to be used from one event loop.

    Args:
        token: the engine's ``$AGENTSPEC_CONTROL_TOKEN``, if it has one.
    """

    def __init__(self, root: str, token: str | None = None) -> None:
        parts = urlsplit(root)
        self._root = root
        self._path = f"{parts.path}{OWN_PREFIX}"
        lines = [f"host: {parts.netloc}", "content-type: application/json"]
        if token is not None:
            lines.append(f"authorization: Bearer {token}")
        self._own_lines = "\r\n".join(lines).encode("latin-1")
        self._connections = ConnectionPool(
            root,
            connect_s=CONNECT_TIMEOUT_S,
            first_byte_s=COMMAND_TIMEOUT_S,
            idle_s=COMMAND_TIMEOUT_S,
        )
        self._stages: Stages | None = None
        self._corpus: Mapping[str, float] | None = None
        self._made_s = 0.0  # the moment that ``_stages`` describes
        self._stale_from = 0.0
        self._is_failing = False
        self._refreshing: asyncio.Task[None] | None = None  # one at a time: the engine answers them in turn
        self._asked_s = 0.0
        self._status: Mapping[str, Any] = {}
        self._status_stale_from = 0.0

    async def stages(self) -> Stages | None:
        """Return the counters per stage: at most a second old if the engine responds, else the last known.

        None if the engine has no plugin, or has not responded yet.
        """
        now_s = time.monotonic()
        if self._refreshing is None and now_s >= self._stale_from:
            self._asked_s = now_s
            self._refreshing = asyncio.create_task(self._refresh())
        if self._refreshing is not None:
            patience_s = max(0.0, self._asked_s + PATIENCE_S - now_s)
            await asyncio.wait([self._refreshing], timeout=patience_s)
        return self._stages

    @property
    def corpus(self) -> Mapping[str, float] | None:
        """The figures of the engine's corpus as of the last :meth:`stages`, by name; None if it has none."""
        return self._corpus

    @property
    def age_s(self) -> float:
        """Seconds from the moment that the last known counters describe until now; 0 if there are none."""
        return 0.0 if self._stages is None else time.monotonic() - self._made_s

    async def model_runner(self) -> str | None:
        """Return ``V1`` or ``V2``, the model runner of vLLM with the plug-in; None without it or if unknown.

        Never raises. The answer is at most ``ABSENT_S`` old.
        """
        if time.monotonic() >= self._status_stale_from:
            self._status_stale_from = time.monotonic() + ABSENT_S
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    status, raw = await self._fetch("GET", "status")
                    self._status = _body_of(status, raw) if status == HTTPStatus.OK else {}
            except (EngineError, TimeoutError):
                self._status = {}
        runner = self._status.get("model_runner")
        return runner if isinstance(runner, str) else None

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

    def close(self) -> None:
        """Close the idle connections."""
        if self._refreshing is not None:
            self._refreshing.cancel()
        self._connections.close()

    async def _refresh(self) -> None:
        fresh_s = FRESH_S
        try:
            async with asyncio.timeout(FIGURES_TIMEOUT_S):
                has_plugin = await self._ask()
            fresh_s = FRESH_S if has_plugin else ABSENT_S
            self._is_failing = False
        except (EngineError, TimeoutError, ValueError) as error:
            if not self._is_failing:  # log once, not at every scrape
                problem = str(error) or f"none within {FIGURES_TIMEOUT_S:g} s"
                logger.warning("no figures from the engine: %s", problem)
            self._is_failing = True
        finally:
            self._stale_from = time.monotonic() + fresh_s
            self._refreshing = None

    async def _ask(self) -> bool:
        """Update the counters by one request. Return False if the engine has no plugin."""
        status, body = await self._fetch("GET", "stages")
        if status == HTTPStatus.NOT_FOUND:
            self._stages = self._corpus = None
            return False
        _check_status(status)
        figures = read_figures(body)
        # another gateway answers too, but without a version, and with the figures of one tenant
        self._stages = figures.stages if figures.plugin else None
        self._corpus = figures.corpus if figures.plugin else None
        self._made_s = time.monotonic() - figures.age_s
        return bool(figures.plugin)

    async def _command(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        status, raw = await self._fetch("POST", name, json.dumps(arguments).encode())
        if status in (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED):
            raise NoControlError(f"the engine at {self._root} does not run the agentspec plugin")
        body = _body_of(status, raw)
        if status < 300:
            return body
        reason = body.get("error", {}).get("message") or f"status {status}"
        if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            raise EngineError(f"the engine at {self._root} refuses the gateway's control token: {reason}")
        if 400 <= status < 500:
            raise RequestError(reason)
        raise EngineError(f"the engine at {self._root} failed: {reason}")

    async def _fetch(self, method: str, name: str, body: bytes = b"") -> tuple[int, bytes]:
        line = f"{method} {self._path}{name} HTTP/1.1".encode("latin-1")
        head = b"\r\n".join([line, self._own_lines, b"content-length: %d" % len(body), b"", b""])
        return await self._connections.fetch(UpstreamRequest(head, body), MOST_BYTES)


def _check_status(status: int) -> None:
    if status != HTTPStatus.OK:
        raise EngineError(f"its control channel answered with status {status}")


def _body_of(status: int, raw: bytes) -> dict[str, Any]:
    """Return the JSON object of a response; errors have OpenAI's form. Raises EngineError if malformed."""
    try:
        body = json.loads(raw)
        if isinstance(body, dict) and isinstance(body.get("error", {}), dict):
            return body
    except (ValueError, RecursionError):
        pass
    raise EngineError(f"the control channel of the engine answered {status} and nothing of ours")


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """The result of a request to an engine's ``/agentspec/status``.

    Attributes:
        root: URL of the engine.
        problem: reason why the probe failed; empty if it did not.
        plugin: version of the plugin; empty without one.
        vllm: version of vLLM.
        num_speculative_tokens: largest number of draft tokens per request and step.
    """

    root: str
    problem: str = ""
    plugin: str = ""
    vllm: str = ""
    num_speculative_tokens: int = 0

    def __str__(self) -> str:
        if self.problem:
            return f"the engine at {self.root} {self.problem}"
        if not self.plugin:
            return f"the engine at {self.root} has no AgentSpec plugin: requests are passed on, and no more"
        return (
            f"the engine at {self.root} is vLLM {self.vllm} with AgentSpec {self.plugin}, "
            f"which drafts up to {self.num_speculative_tokens} tokens"
        )


def probe_engine(root: str, control_token: str | None = None) -> ProbeResult:
    """Probe the engine at ``root``, a URL without ``/v1``. Never raises, and takes a few seconds at most."""
    headers = {"authorization": f"Bearer {control_token}"} if control_token else {}
    try:
        answer = httpx.get(f"{root}{OWN_PREFIX}status", headers=headers, timeout=TIMEOUT_S, trust_env=False)
    except httpx.HTTPError as error:
        return ProbeResult(root, f"can't be reached yet: {str(error) or type(error).__name__}")
    if answer.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
        return ProbeResult(root, "wants its $AGENTSPEC_CONTROL_TOKEN: give it as --control-token")
    try:
        status = answer.raise_for_status().json()
        return ProbeResult(
            root,
            plugin=str(status["agentspec"]),
            vllm=str(status["vllm"]),
            num_speculative_tokens=int(status["num_speculative_tokens"]),
        )
    except (httpx.HTTPStatusError, ValueError, LookupError, TypeError):
        return ProbeResult(root)
