"""The seam between the gateway and whatever generates the tokens."""

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
    """Answers the calls of one gateway."""

    async def start(self) -> None:
        """Calls come from now on, in this event loop."""

    async def answer(self, call: ApiCall, response: ApiResponse) -> None:
        """Answer ``call`` by ``response``. Cancelled when the client leaves: releases all it holds.

        Raises:
            RequestError: the request is at fault.
            EngineError: the upstream is.
        """

    async def is_healthy(self) -> bool:
        """True if a request would be answered now."""

    async def stats(self) -> Mapping[StageKey, StageStats]:
        """Counters per stage since the start, in the order in which the stages were first seen.

        Never fails: of an upstream that is down it tells the last known.
        """

    async def metrics(self) -> Iterable[Metric]:
        """What Prometheus should know of it beside the stages. Never fails."""

    async def trace(self, tenant: str | None, request_id: str) -> Sequence[Any] | None:
        """The decode steps of a traced request of the tenant, or of any if that is None.

        They have the form of ``TracedStep.describe``.

        None if none are kept under this id: of requests whose answers told their steps there are none.

        Raises:
            EngineError: an engine that may have them can't be asked.
        """

    async def evict(self, stage: StageKey) -> dict[str, Any]:
        """Forget what the stage's own tree has learned: ``freed_bytes``.

        Raises (like all that concerns the trees):
            RequestError: what was asked can't be done.
            EngineError: there are no trees within reach, or the upstream failed.
        """

    async def warm(self, tenant: str, outputs: Sequence[PastOutput]) -> dict[str, Any]:
        """Learn past outputs of the tenant's stages: ``num_outputs``, ``num_tokens``."""

    async def save(self, path: str | None) -> dict[str, Any]:
        """Write the trees of all tenants to a file where the engine runs: ``path`` and sizes.

        None = the file it was configured with.
        """

    async def load(self, path: str | None) -> dict[str, Any]:
        """Add what such a file holds: ``path`` and sizes."""

    async def close(self) -> None:
        """Release everything; requests under way end with an error."""
