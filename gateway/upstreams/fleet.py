"""All HTTP engines as one upstream: a request waits for room, is sent to one engine, and may be retried."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Generic, TypeVar

from prometheus_client.core import Metric

from agentspec.errors import AgentSpecError, UnknownModelError
from agentspec.gateway.call import ApiCall
from agentspec.gateway.errors import QueueFullError, QueueTimeoutError, UpstreamDownError
from agentspec.gateway.http.api_response import ApiResponse
from agentspec.gateway.settings import FleetSettings, UpstreamSettings
from agentspec.gateway.upstreams.metrics import RequestMetrics, corpus_metrics, upstream_metrics
from agentspec.gateway.upstreams.replica import Replica
from agentspec.gateway.upstreams.routing import RANK_HEADER, affinity_header, affinity_of, choose
from agentspec.generation import PastOutput
from agentspec.stages import StageKey
from agentspec.stats import StageStats

Place = TypeVar("Place")
MODELS_PATH = "/v1/models"
SAFE_METHODS = frozenset(("GET", "HEAD", "OPTIONS"))
NONE: frozenset[int] = frozenset()


@dataclass(slots=True, eq=False)
class _Waiter(Generic[Place]):
    kind: Hashable
    take: Callable[[], Place | None]
    served: asyncio.Future[Place]


class AdmissionQueue(Generic[Place]):
    """A bounded FIFO queue in front of places with limited room.

    Args:
        max_waiting: largest number of waiters; a further one is refused.
        timeout_s: seconds after which a waiter is refused.
    """

    def __init__(self, max_waiting: int, timeout_s: float) -> None:
        self.max_waiting = max_waiting
        self.timeout_s = timeout_s
        self._waiters: dict[_Waiter[Place], None] = {}

    def __len__(self) -> int:
        return len(self._waiters)

    async def acquire(
        self, kind: Hashable, take: Callable[[], Place | None], leave: Callable[[Place], None]
    ) -> Place:
        """Wait until ``take`` returns a place: immediately if the queue is empty, or at a ``move``.

        Args:
            kind: group of the waiter. If ``take`` returns None for one waiter, ``move`` skips the later ones
                of its kind.
            leave: returns a place, if the waiter left at the moment in which it was served.

        Raises:
            QueueFullError, QueueTimeoutError, and any error of ``take``
        """
        if not self._waiters and (place := take()) is not None:
            return place
        if len(self._waiters) >= self.max_waiting:
            raise QueueFullError(f"all engines are busy and {len(self._waiters)} requests wait already")
        waiter = _Waiter(kind, take, asyncio.get_running_loop().create_future())
        self._waiters[waiter] = None
        self.notify()  # earlier waiters may be waiting for other engines than the one with room
        try:
            async with asyncio.timeout(self.timeout_s):
                return await asyncio.shield(waiter.served)
        except BaseException as error:
            if waiter.served.done() and waiter.served.exception() is None:
                leave(waiter.served.result())
            if isinstance(error, TimeoutError):
                raise QueueTimeoutError(f"no engine had room within {self.timeout_s:g} s") from None
            raise
        finally:
            self._waiters.pop(waiter, None)

    def notify(self) -> None:
        """Serve every waiter for which there is room now, in order. Call after each change."""
        refused: set[Hashable] = set()
        for waiter in list(self._waiters):
            if waiter.kind in refused:
                continue
            try:
                place = waiter.take()
            except AgentSpecError as error:
                del self._waiters[waiter]
                waiter.served.set_exception(error)
                continue
            if place is None:
                refused.add(waiter.kind)
            else:
                del self._waiters[waiter]
                waiter.served.set_result(place)


class Fleet:
    """An upstream that forwards every call to one of its engines."""

    def __init__(self, settings: FleetSettings) -> None:
        self._settings = settings
        self._replicas: list[Replica] = []
        self._requests = RequestMetrics()
        self._retiring: set[asyncio.Task[None]] = set()
        self._queue: AdmissionQueue[Replica] = AdmissionQueue(
            settings.routing.max_waiting, settings.timeouts.queue_s
        )
        self._probing: asyncio.Task[None] | None = None

    @property
    def upstreams(self) -> tuple[UpstreamSettings, ...]:
        """Current settings of the engines."""
        return self._settings.upstreams

    async def start(self) -> None:
        """Start the health checks of the engines, in this event loop."""
        self._replicas = [self._replica(one) for one in self._settings.upstreams]
        self._probing = asyncio.create_task(self._probe_regularly())

    def apply(self, settings: FleetSettings) -> None:
        """Apply new settings.

        Engines with unchanged settings keep their connections and their health state. The others close when
        their last request is over.
        """
        kept = (
            {}
            if _differ_in_common(settings, self._settings)
            else {one.settings: one for one in self._replicas}
        )
        before, self._settings = self._replicas, settings
        self._replicas = [kept.get(one) or self._replica(one) for one in settings.upstreams]
        self._queue.max_waiting = settings.routing.max_waiting
        self._queue.timeout_s = settings.timeouts.queue_s
        for replica in before:
            if replica not in self._replicas:
                retiring = asyncio.create_task(replica.retire())
                self._retiring.add(retiring)
                retiring.add_done_callback(self._retiring.discard)
        self._queue.notify()

    async def answer(self, call: ApiCall, response: ApiResponse) -> None:
        """Forward ``call`` and stream the response back; see :meth:`Upstream.answer`."""
        if call.path == MODELS_PATH and call.method == "GET" and len(self._replicas) > 1:
            await response.send_json(200, await self._all_models(call))
            return
        retries = self._settings.retries
        num_retries = retries.num_retries if _is_repeatable(call) else 0
        tried: list[Replica] = []
        for retry in range(num_retries + 1):
            refused = retries.statuses if retry < num_retries else NONE
            try:
                if await self._try(call, response, tried, refused) not in refused:
                    return
            except UpstreamDownError:
                if retry == num_retries or response.is_started:
                    raise
            await asyncio.sleep(retries.backoff_s * 2**retry * random.uniform(0.5, 1.0))

    async def is_healthy(self) -> bool:
        """True if any engine responds."""
        return any(await asyncio.gather(*(replica.is_answering() for replica in self._replicas)))

    async def stats(self) -> Mapping[StageKey, StageStats]:
        """Return the sums of all engines' counters."""
        by_stage: defaultdict[StageKey, list[StageStats]] = defaultdict(list)
        for stages in await asyncio.gather(*(replica.stats() for replica in self._replicas)):
            for stage, stats in stages.items():
                by_stage[stage].append(stats)
        return {
            stage: parts[0] if len(parts) == 1 else StageStats.sum(parts) for stage, parts in by_stage.items()
        }

    @property
    def stats_age_s(self) -> float:
        """Age of the oldest counters in :meth:`stats`."""
        return max((replica.stats_age_s for replica in self._replicas), default=0.0)

    async def metrics(self) -> Iterable[Metric]:
        """Return the metrics of every engine and of the admission queue."""
        if len(self._replicas) == 1:  # _probe_regularly does not probe a single engine
            await self._replicas[0].probe_health()
        corpora = self.corpora()
        shared = corpus_metrics(corpora) if corpora else ()
        return chain(upstream_metrics(self._replicas, len(self._queue)), self._requests.collect(), shared)

    def corpora(self) -> Mapping[str, Mapping[str, float]]:
        """Return the figures of the engines' corpora, see :meth:`Upstream.corpora`."""
        return {one.name: one.control.corpus for one in self._replicas if one.control.corpus is not None}

    async def trace(self, tenant: str | None, request_id: str) -> list[Any] | None:
        """Return the longest trace: an engine that broke off may have a part; see :meth:`Upstream.trace`."""
        results = await asyncio.gather(
            *(replica.control.trace(tenant, request_id) for replica in self._replicas),
            return_exceptions=True,
        )
        steps = max((one for one in results if isinstance(one, list)), key=len, default=None)
        failure = next((one for one in results if isinstance(one, BaseException)), None)
        if steps is None and failure is not None:
            raise failure
        return steps

    async def evict(self, stage: StageKey) -> dict[str, Any]:
        """Clear the stage's tree on every engine; see :meth:`Upstream.evict`."""
        return await self._on_all(lambda replica: replica.control.evict(stage))

    async def warm(self, tenant: str, outputs: Sequence[PastOutput]) -> dict[str, Any]:
        """Warm every engine; see :meth:`Upstream.warm`."""
        return await self._on_all(lambda replica: replica.control.warm(tenant, outputs))

    async def save(self, path: str | None) -> dict[str, Any]:
        """Save the trees of every engine on its own machine; see :meth:`Upstream.save`."""
        return await self._on_all(lambda replica: replica.control.save(path))

    async def load(self, path: str | None) -> dict[str, Any]:
        """Load the trees of every engine; see :meth:`Upstream.load`."""
        return await self._on_all(lambda replica: replica.control.load(path))

    async def close(self) -> None:
        """Stop the health checks and close all replicas, also those that still serve their last requests."""
        tasks = [task for task in (self._probing, *self._retiring) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(replica.close() for replica in self._replicas))

    def _replica(self, settings: UpstreamSettings) -> Replica:
        return Replica(settings, self._settings, self._requests.of(settings.label))

    async def _try(
        self, call: ApiCall, response: ApiResponse, tried: list[Replica], refused: frozenset[int]
    ) -> int:
        """Wait for an engine, let it answer, and return the status of the response."""
        replica = await self._queue.acquire(call.model, lambda: self._take(call, tried), self._release)
        try:
            if tried:
                replica.metrics.retries.inc()
            tried.append(replica)
            call.record.upstream, call.record.num_tries = replica.name, len(tried)
            given, routing = call.headers.get(RANK_HEADER), self._settings.routing
            with replica.ranks.entered(self._affinity(call), given, routing.spill) as rank:
                affinity = affinity_header(call, routing)
                return await replica.answer(call, response, refused, rank=rank, affinity=affinity)
        finally:
            self._release(replica)

    def _take(self, call: ApiCall, tried: Sequence[Replica]) -> Replica | None:
        """Choose and enter an engine for ``call``; None if all suitable ones are full."""
        able = [replica for replica in self._replicas if replica.may_serve(call.model)]
        if not able:
            raise UnknownModelError(f"no engine here serves {call.model!r}")
        best = _preferred(
            able,
            lambda replica: replica not in tried,
            lambda replica: replica.is_up,
            lambda replica: call.model is None or replica.listed is None or call.model in replica.listed,
        )
        free = [replica for replica in best if replica.has_room]
        if not free:
            return None
        replica = choose(free, self._affinity(call), self._settings.routing.spill)
        replica.enter()
        return replica

    def _release(self, replica: Replica) -> None:
        replica.leave()
        self._queue.notify()

    def _affinity(self, call: ApiCall) -> str | None:
        return affinity_of(call, self._settings.routing.policy)

    async def _all_models(self, call: ApiCall) -> dict[str, Any]:
        """List the models of all engines that respond, without duplicates."""
        lists = await asyncio.gather(*(replica.models(call) for replica in self._replicas))
        models = {model["id"]: model for listed in lists for model in listed}
        if not models:
            raise UpstreamDownError("no engine lists its models")
        return {"object": "list", "data": list(models.values())}

    async def _on_all(self, work: Callable[[Replica], Awaitable[dict[str, Any]]]) -> dict[str, Any]:
        """Run ``work`` on all engines and merge the results: sums of numbers, else the last value."""
        total: dict[str, Any] = {}
        for result in await asyncio.gather(*map(work, self._replicas)):
            for name, value in result.items():
                total[name] = total.get(name, 0) + value if isinstance(value, int) else value
        return total

    async def _probe_regularly(self) -> None:
        while True:
            if len(self._replicas) > 1:  # with one engine there is no choice to make
                await asyncio.gather(*(replica.probe_health() for replica in self._replicas))
                self._queue.notify()
            await asyncio.sleep(self._settings.health.interval_s)


def _differ_in_common(one: FleetSettings, other: FleetSettings) -> bool:
    """True if a setting that concerns every engine differs."""
    common = ("timeouts", "health", "forwards_authorization")
    return any(getattr(one, name) != getattr(other, name) for name in common)


def _preferred(replicas: list[Replica], *wishes: Callable[[Replica], bool]) -> list[Replica]:
    """Filter by each wish in turn, skipping a wish that no replica meets."""
    for wish in wishes:
        replicas = [replica for replica in replicas if wish(replica)] or replicas
    return replicas


def _is_repeatable(call: ApiCall) -> bool:
    """True if repeating the call is harmless: it generates, or only reads."""
    return call.tags is not None or call.method in SAFE_METHODS
