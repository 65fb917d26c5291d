"""One engine of the fleet: its connections, its load and its health."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any
from urllib.parse import urlsplit

from agentspec.errors import EngineError, RequestError
from agentspec.gateway.call import ApiCall
from agentspec.gateway.errors import UnreachableError
from agentspec.gateway.http.api_response import ApiResponse
from agentspec.gateway.settings import FleetSettings, UpstreamSettings
from agentspec.gateway.upstreams.connection import UpstreamConnection
from agentspec.gateway.upstreams.connection_pool import ConnectionPool
from agentspec.gateway.upstreams.control_client import EngineControl
from agentspec.gateway.upstreams.forwarding import Forwarding, returned
from agentspec.gateway.upstreams.metrics import EngineMetrics
from agentspec.gateway.upstreams.routing import DataParallelRanks
from agentspec.gateway.upstreams.sampler_limits import check_room
from agentspec.gateway.upstreams.usage import Stages, StageUsage, UsageTail

FAILED_STATUSES = frozenset((500, 502, 503, 504))
MOST_LISTED_BYTES = 1 << 20
RUNNER_WITHOUT_LIMITS = "V1"

logger = logging.getLogger("agentspec.gateway")


class Replica:
    """An engine that calls are forwarded to; a target of ``routing``.

    Attributes:
        name, weight: see UpstreamSettings.
        ranks: its data-parallel ranks.
        num_running: number of requests in flight.
        is_up: False after a number of failed probes or connections in a row, until a probe succeeds.
        listed: models of its ``/v1/models``; None until the first list was received.
        metrics: its counters, which continue those of a former replica with the same name.
    """

    def __init__(self, settings: UpstreamSettings, fleet: FleetSettings, metrics: EngineMetrics) -> None:
        root = settings.root
        parts = urlsplit(root)
        timeouts = fleet.timeouts
        self.settings = settings
        self.root = root
        self.name = settings.label
        self.weight = settings.weight
        self.ranks = DataParallelRanks(settings.data_parallel_size)
        self.num_running = 0
        self.is_up = True
        self.listed: frozenset[str] | None = None
        self.metrics = metrics
        self.control = EngineControl(root, settings.control_token)
        self._usage = StageUsage()
        self._forwarding = Forwarding(
            parts.netloc, parts.path, settings, forwards_authorization=fleet.forwards_authorization
        )
        self._connections = ConnectionPool(
            root,
            connect_s=timeouts.connect_s,
            first_byte_s=timeouts.first_byte_s,
            idle_s=timeouts.idle_s,
        )
        self._health = fleet.health
        self._num_failed_looks = 0
        self._is_idle = asyncio.Event()
        self._clock = asyncio.get_running_loop().time

    @property
    def has_room(self) -> bool:
        """True if the engine may get one more request."""
        limit = self.settings.max_concurrent
        return limit is None or self.num_running < limit

    @property
    def stats_age_s(self) -> float:
        """Seconds since the moment that :meth:`stats` described last."""
        return self.control.age_s

    def may_serve(self, model: str | None) -> bool:
        """True if the configuration allows ``model`` on this engine."""
        return not self.settings.models or model is None or model in self.settings.models

    def enter(self) -> None:
        """Count a request that will be sent to this engine."""
        self.num_running += 1

    def leave(self) -> None:
        """Count the end of a request, successful or not."""
        self.num_running -= 1
        if not self.num_running:
            self._is_idle.set()

    async def retire(self) -> None:
        """Close when no request is in flight any more."""
        try:
            while self.num_running:
                self._is_idle.clear()
                await self._is_idle.wait()
        finally:
            await self.close()

    async def answer(
        self,
        call: ApiCall,
        response: ApiResponse,
        refused: frozenset[int],
        *,
        rank: str | None = None,
        affinity: str | None = None,
    ) -> int:
        """Forward ``call`` and stream the response back.

        Args:
            refused: statuses with which a response is discarded.
            rank: data-parallel rank for the call; None = not named by the gateway.
            affinity: value of ``X-AgentSpec-Affinity``.

        Returns:
            The status of the response.

        Raises:
            RequestError: the request is at fault, or would end the engine.
            UpstreamDownError, UpstreamTimeoutError: the engine is at fault. Nothing was sent to the client
                unless ``response`` is started.
        """
        await self._check_room(call)
        request = self._forwarding.request(call, rank, affinity)
        self.metrics.requests.inc()
        sent_s = self._clock()
        try:
            connection = await self._connections.send(request)
            self.metrics.first_byte_s.observe(self._clock() - sent_s)
            try:
                await self._send_back(call, connection, response, refused)
            finally:
                self._connections.put_back(connection)
        except EngineError as error:
            self.metrics.failures.inc()
            if isinstance(error, UnreachableError):  # not the request's fault
                self._note_health(is_well=False)
            raise
        if connection.status in FAILED_STATUSES:
            self.metrics.failures.inc()
        return connection.status

    async def probe_health(self) -> None:
        """Check the engine's health and update the list of its models. Never raises."""
        try:
            async with asyncio.timeout(self._health.timeout_s):
                status, _ = await self._get("/health")
                is_well = status < 500
                if is_well:
                    models = _models(*await self._get("/v1/models"))
                    self.listed = frozenset(model["id"] for model in models) or self.listed
        except (EngineError, TimeoutError):
            is_well = False
        self._note_health(is_well=is_well)

    def _note_health(self, *, is_well: bool) -> None:
        self._num_failed_looks = 0 if is_well else self._num_failed_looks + 1
        is_up = self._num_failed_looks < self._health.num_failed_looks
        if is_up != self.is_up:
            logger.warning("the engine at %s is %s", self.root, "up again" if is_up else "down")
        self.is_up = is_up

    async def is_answering(self) -> bool:
        """True if the engine responds, even with 404: not every server has a ``/health``."""
        try:
            async with asyncio.timeout(self._health.timeout_s):
                status, _ = await self._get("/health")
        except (EngineError, TimeoutError):
            return False
        return status < 500

    async def models(self, call: ApiCall) -> list[dict[str, Any]]:
        """List the engine's models for ``call``; empty if it does not respond in time. Never raises."""
        try:
            async with asyncio.timeout(self._health.timeout_s):
                return _models(
                    *await self._connections.fetch(self._forwarding.request(call), MOST_LISTED_BYTES)
                )
        except (EngineError, TimeoutError):
            return []

    async def stats(self) -> Stages:
        """Return the counters of the engine's plugin; without one, those read from forwarded responses."""
        reported = await self.control.stages()
        return self._usage.stats if reported is None else reported

    async def close(self) -> None:
        """Close the idle connections and the control client."""
        self._connections.close()
        self.control.close()

    async def _check_room(self, call: ApiCall) -> None:
        """Raise RequestError if the call would end a vLLM. Asks the engine for its model runner only then."""
        if call.body is None or not self.settings.sends_xargs:
            return
        try:
            check_room(call.body)
        except RequestError:
            runner = await self.control.model_runner()
            if runner is None:
                raise
            if runner != RUNNER_WITHOUT_LIMITS:
                check_room(call.body, has_plugin=True)

    async def _send_back(
        self, call: ApiCall, connection: UpstreamConnection, response: ApiResponse, refused: frozenset[int]
    ) -> None:
        if connection.status in refused:
            return
        headers = returned(connection.status, connection.headers)
        kind = next((value for name, value in headers if name == b"content-type"), b"")
        tail = UsageTail(is_event_stream=kind.startswith(b"text/event-stream"))
        if call.tags is not None:
            self._usage.count_request(call.tags.stage)
        response.listeners.append(tail.add)
        await response.start(connection.status, headers)
        await connection.stream_to(response)
        await response.end()
        if connection.status == 200 and call.tags is not None:
            call.record.reported = tail.payload()
            self._usage.count_answer(call.tags.stage, call.record.reported)

    async def _get(self, path: str) -> tuple[int, bytes]:
        return await self._connections.fetch(self._forwarding.own_request(path), MOST_LISTED_BYTES)


def _models(status: int, body: bytes) -> list[dict[str, Any]]:
    """Return the models in a response of ``/v1/models``; none if it is malformed."""
    try:
        models = json.loads(body)["data"] if status == 200 else []
        return [model for model in models if isinstance(model["id"], str)]
    except (ValueError, LookupError, TypeError, RecursionError):
        return []
