"""The gateway's upstream on Ray: a handle of the engine replicas. Serve's request router chooses one."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import chain
from typing import Any

from prometheus_client.core import Metric
from ray.exceptions import RayError, RayTaskError
from ray.serve.exceptions import BackPressureError, RayServeException
from ray.serve.handle import DeploymentHandle

from agentspec.errors import AgentSpecError, EngineError, RequestError
from agentspec.gateway.call import ApiCall, CallLog
from agentspec.gateway.errors import QueueFullError, UpstreamDownError, UpstreamTimeoutError
from agentspec.gateway.http.api_response import ApiResponse
from agentspec.gateway.settings import Settings
from agentspec.gateway.upstreams.metrics import RequestMetrics, corpus_metrics
from agentspec.gateway.upstreams.routing import affinity_header
from agentspec.generation import PastOutput
from agentspec.ray.answer_parts import AnswerBody, AnswerHead, AnswerPart
from agentspec.stages import StageKey
from agentspec.stats import StageStats

COMMAND_TIMEOUT_S = 600.0
UPSTREAM = "ray"  # in logs and metrics
NONE: frozenset[int] = frozenset()

logger = logging.getLogger("agentspec.gateway")


class RayUpstream:
    """Implements :class:`~agentspec.gateway.upstreams.upstream.Upstream` with the replicas of a deployment.

    Args:
        engines: handle of the deployment of :class:`~agentspec.ray.engine_replica.EngineReplica`.
        settings: routing, time limits and retries.
    """

    def __init__(self, engines: DeploymentHandle, settings: Settings) -> None:
        self._engines = engines
        self._routing = settings.routing
        self._timeouts = settings.timeouts
        self._retries = settings.retries
        self._patience_s = settings.health.timeout_s
        self._requests = RequestMetrics()
        self._metrics = self._requests.of(UPSTREAM)
        self._stats: Mapping[StageKey, StageStats] = {}
        self._stats_s: float | None = None
        self._corpora: Mapping[str, Mapping[str, float]] = {}

    async def start(self) -> None:
        """Do nothing: Serve runs the engines."""

    async def answer(self, call: ApiCall, response: ApiResponse) -> None:
        """Let a replica answer; another one if it is lost before the client received anything."""
        for retry in range(self._retries.num_retries + 1):
            call.record.upstream, call.record.num_tries = UPSTREAM, retry + 1
            self._metrics.requests.inc()
            if retry:
                self._metrics.retries.inc()
            is_last = retry == self._retries.num_retries
            try:
                if await self._try(call, response, NONE if is_last else self._retries.statuses):
                    return
                self._metrics.failures.inc()
            except UpstreamDownError as error:
                self._metrics.failures.inc()
                if is_last or response.is_started:
                    raise
                logger.warning("retrying: %s", error, extra={"fields": {"request_id": call.request_id}})
            await asyncio.sleep(self._retries.backoff_s * 2**retry * random.uniform(0.5, 1.0))

    async def _try(self, call: ApiCall, response: ApiResponse, refused: frozenset[int]) -> bool:
        """Send the answer of one replica. Return False if its status is one of ``refused``."""
        async with self._parts(call) as parts:
            sent_s = time.monotonic()
            head = await self._next(parts, self._timeouts.first_byte_s)
            self._metrics.first_byte_s.observe(time.monotonic() - sent_s)
            if not isinstance(head, AnswerHead):
                raise UpstreamDownError("the engine replica began its answer without a head")
            if head.status in refused:
                return False
            part = await self._next(parts, self._timeouts.idle_s)  # a head alone can still be retried
            await response.start(head.status, head.headers)
            while isinstance(part, AnswerBody) and not part.is_last:
                await response.write(part.content)
                part = await self._next(parts, self._timeouts.idle_s)
            assert isinstance(part, AnswerBody)
            if part.content:  # sent with the end: a client that has all bytes may leave before a later end
                response.write_nowait(part.content)
            await response.end()
        return True

    @asynccontextmanager
    async def _parts(self, call: ApiCall) -> AsyncIterator[AsyncIterator[AnswerPart]]:
        """Send the call to the replica of its affinity. On exit the replica stops the call at any stage."""
        affinity = affinity_header(call, self._routing)
        engines = self._engines.options(method_name="answer", stream=True)
        if affinity is not None:
            engines = engines.options(session_id=affinity)
        sent = replace(call, body=None, record=CallLog(trace_headers=call.record.trace_headers))
        parts = engines.remote(sent)
        try:
            yield parts
        finally:
            parts.cancel()

    async def _next(self, parts: AsyncIterator[AnswerPart], timeout_s: float) -> AnswerPart:
        try:
            async with asyncio.timeout(timeout_s):
                return await anext(parts)
        except TimeoutError:
            raise UpstreamTimeoutError(f"the engine replica sent nothing for {timeout_s:g} s") from None
        except StopAsyncIteration:
            raise UpstreamDownError("the engine replica broke off its answer") from None
        except BackPressureError:
            raise QueueFullError("all engine replicas are full, and too many requests wait") from None
        except (RayError, RayServeException) as error:
            reason = str(error).partition("\n")[0]
            raise UpstreamDownError(f"the engine replica was lost: {reason}") from error

    async def is_healthy(self) -> bool:
        """True if any replica answers and is healthy."""
        return any(one is True for one in await self._ask_all("is_healthy"))

    async def stats(self) -> Mapping[StageKey, StageStats]:
        """Return the sums of all replicas' counters. A replica that was stopped no longer counts."""
        answers = [one for one in await self._ask_all("stats") if isinstance(one, Mapping)]
        await self._read_corpora()
        if answers:
            by_stage: defaultdict[StageKey, list[StageStats]] = defaultdict(list)
            for stages in answers:
                for stage, stats in stages.items():
                    by_stage[stage].append(stats)
            self._stats = {stage: StageStats.sum(parts) for stage, parts in by_stage.items()}
            self._stats_s = asyncio.get_running_loop().time()
        return self._stats

    @property
    def stats_age_s(self) -> float:
        """Seconds since the replicas answered :meth:`stats` last."""
        return 0.0 if self._stats_s is None else asyncio.get_running_loop().time() - self._stats_s

    async def metrics(self) -> Iterable[Metric]:
        """Return the metrics of this gateway's requests, and of the replicas' corpora by number."""
        await self._read_corpora()
        return chain(self._requests.collect(), corpus_metrics(self._corpora))

    def corpora(self) -> Mapping[str, Mapping[str, float]]:
        """Return the figures of the replicas' corpora by number, see :meth:`Upstream.corpora`."""
        return self._corpora

    async def _read_corpora(self) -> None:
        answers = [one for one in await self._ask_all("corpus_figures") if isinstance(one, Mapping)]
        self._corpora = {f"engine-{number}": one for number, one in enumerate(answers)}

    async def trace(self, tenant: str | None, request_id: str) -> Sequence[Any] | None:
        """Return the longest trace that a replica has; see :meth:`Upstream.trace`."""
        answers = await self._command("trace", tenant, request_id)
        return max((one for one in answers if one is not None), key=len, default=None)

    async def evict(self, stage: StageKey) -> dict[str, Any]:
        """Clear the stage's tree on every replica; see :meth:`Upstream.evict`."""
        return _summed(await self._command("evict", stage))

    async def warm(self, tenant: str, outputs: Sequence[PastOutput]) -> dict[str, Any]:
        """Warm every replica; see :meth:`Upstream.warm`."""
        return _summed(await self._command("warm", tenant, outputs))

    async def save(self, path: str | None) -> dict[str, Any]:
        """Refuse: replicas share outputs by a corpus, not by a file."""
        raise _no_files()

    async def load(self, path: str | None) -> dict[str, Any]:
        """Refuse, as :meth:`save`."""
        raise _no_files()

    async def close(self) -> None:
        """Do nothing: Serve stops the engines."""

    async def _ask_all(self, method: str) -> list[Any]:
        """Return the answers of all replicas within the time limit, exceptions among them. Never raises."""
        try:
            asked = self._engines.broadcast(method)
            answers: list[Any] = await asked.results_async(timeout_s=self._patience_s, return_exceptions=True)
        except (TimeoutError, RayError, RayServeException) as error:
            logger.warning("the engine replicas did not answer %r: %s", method, error)
            return []
        return answers

    async def _command(self, method: str, *arguments: Any) -> list[Any]:
        """Return what every replica returned. Raises the error of the first that failed."""
        try:
            asked = self._engines.broadcast(method, *arguments)
            answers: list[Any] = await asked.results_async(timeout_s=COMMAND_TIMEOUT_S)
        except RayTaskError as error:
            if isinstance(error.cause, AgentSpecError):
                raise error.cause from None
            raise EngineError(f"an engine replica failed: {error.cause!r}") from error
        except (TimeoutError, RayError, RayServeException) as error:
            raise EngineError(f"an engine replica can't be reached: {error}") from error
        return answers


def _summed(answers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the sums of numbers by name; of other values the last one."""
    total: dict[str, Any] = {}
    for answer in answers:
        for name, value in answer.items():
            total[name] = total.get(name, 0) + value if isinstance(value, int) else value
    return total


def _no_files() -> RequestError:
    return RequestError(
        "trees of engine replicas are neither saved nor loaded: set engine.corpus, which they share and keep"
    )
