"""The interface between the gateway and the engine or engines that generate tokens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from prometheus_client.core import Metric

from agentspec.gateway.call import ApiCall
from agentspec.gateway.http.api_response import ApiResponse
from agentspec.generation import PastOutput
from agentspec.stages import StageKey
from agentspec.stats import StageStats


class Upstream(Protocol):
    """An engine, or a fleet of engines, that answers the calls of one gateway."""

    async def start(self) -> None:
        """Prepare for calls, which are made in this event loop."""

    async def answer(self, call: ApiCall, response: ApiResponse) -> None:
        """Answer ``call`` by ``response``. A disconnect of the client cancels it, which frees its resources.

        Raises:
            RequestError: the request is at fault.
            EngineError: the upstream is at fault.
        """

    async def is_healthy(self) -> bool:
        """True if the upstream can answer requests now."""

    async def stats(self) -> Mapping[StageKey, StageStats]:
        """Return the counters per stage since the start, in the order in which the stages were first seen.

        Never fails: if the upstream is down or late, the last known counters are returned.
        """

    @property
    def stats_age_s(self) -> float:
        """Seconds since the moment that :meth:`stats` described last, of the oldest part."""

    async def metrics(self) -> Iterable[Metric]:
        """Return the Prometheus metrics other than those per stage. Never fails."""

    def corpora(self) -> Mapping[str, Mapping[str, float]]:
        """Return the figures of the engines that share outputs, by engine and name, as of the last stats."""

    async def trace(self, tenant: str | None, request_id: str) -> Sequence[Any] | None:
        """Return the decode steps of a traced request of the tenant, or of any tenant if that is None.

        They have the form of ``TracedStep.describe``. None if no trace is kept under this id, as for requests
        that already have the trace in their answer.

        Raises:
            EngineError: an engine that may have the trace can't be reached.
        """

    async def evict(self, stage: StageKey) -> dict[str, Any]:
        """Clear the stage's own tree and return ``freed_bytes``.

        Raises (as do the other tree commands):
            RequestError: the request can't be fulfilled.
            EngineError: no trees are accessible, or the upstream failed.
        """

    async def warm(self, tenant: str, outputs: Sequence[PastOutput]) -> dict[str, Any]:
        """Insert past outputs into the tenant's trees and return ``num_outputs`` and ``num_tokens``."""

    async def save(self, path: str | None) -> dict[str, Any]:
        """Write the trees of all tenants to a file on the engine's machine and return ``path`` and sizes.

        None = the file it was configured with.
        """

    async def load(self, path: str | None) -> dict[str, Any]:
        """Add the trees in a file that ``save`` wrote and return ``path`` and sizes."""

    async def close(self) -> None:
        """Release all resources. Requests in flight end with an error."""
