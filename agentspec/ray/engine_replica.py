"""The deployment ``engine``: one engine per replica, behind methods that a gateway calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from agentspec.commands.logs import start_logging
from agentspec.commands.serve.options import ServeOptions
from agentspec.errors import EngineError
from agentspec.gateway.call import ApiCall
from agentspec.gateway.http.api_response import ApiResponse
from agentspec.gateway.http.request_body import guess_body
from agentspec.gateway.settings import Settings
from agentspec.generation import PastOutput
from agentspec.ray.answer_parts import AnswerPart, AnswerParts
from agentspec.ray.autoscaling import RECENT_TOKENS_PER_STEP, RecentSpeed
from agentspec.ray.hosted_engine import HostedEngine
from agentspec.stages import StageKey
from agentspec.stats import StageStats

JOIN_S = "join_s"  # in the deployment's user_config


class EngineReplica:
    """Hosts an engine. Serve calls ``reconfigure`` before the first request, ``__del__`` after the last."""

    def __init__(self, options: ServeOptions, settings: Settings) -> None:
        start_logging(settings.server.log_level, settings.server.log_format)
        self._hosted = HostedEngine.of(options, settings)
        self._recent_speed = RecentSpeed()
        self._is_started = False

    async def reconfigure(self, user_config: Mapping[str, float]) -> None:
        """Wait until the engine is ready; Serve sends requests after that. Later calls change nothing."""
        if not self._is_started:
            self._is_started = True
            await self._hosted.start(user_config[JOIN_S])

    async def answer(self, call: ApiCall) -> AsyncIterator[AnswerPart]:
        """Answer a call. Errors are part of the answer, in OpenAI's form. Closing the iterator cancels."""
        parts = AnswerParts()
        call = replace(call, body=guess_body(call.raw_body))
        work = asyncio.create_task(self._answer(call, ApiResponse(parts, call.request_id)))
        work.add_done_callback(lambda _: parts.close())
        try:
            async for part in parts:
                yield part
        finally:
            if not parts.is_complete:
                work.cancel()
            await asyncio.wait({work})

    async def _answer(self, call: ApiCall, response: ApiResponse) -> None:
        try:
            await self._hosted.upstream.answer(call, response)
        except Exception as error:
            await response.fail(error)

    async def check_health(self) -> None:
        """Raise EngineError if the engine has failed: Serve then replaces the replica."""
        if not await self._hosted.upstream.is_healthy():
            raise EngineError("the engine has stopped or fails every step")

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Return the figures that ``autoscaling.engines_wanted`` reads."""
        return {RECENT_TOKENS_PER_STEP: self._recent_speed.update(await self._hosted.upstream.stats())}

    async def is_healthy(self) -> bool:
        """True if the engine can answer requests now."""
        return await self._hosted.upstream.is_healthy()

    async def stats(self) -> Mapping[StageKey, StageStats]:
        """Return the engine's counters per stage."""
        return await self._hosted.upstream.stats()

    async def corpus_figures(self) -> Mapping[str, float] | None:
        """Return the figures of the corpus by name; None if this process has none."""
        corpus = self._hosted.corpus
        return None if corpus is None else corpus.figures().describe()

    async def trace(self, tenant: str | None, request_id: str) -> Sequence[Any] | None:
        """Return the decode steps of a traced request; see :meth:`Upstream.trace`."""
        return await self._hosted.upstream.trace(tenant, request_id)

    async def evict(self, stage: StageKey) -> dict[str, Any]:
        """Clear the stage's own tree; see :meth:`Upstream.evict`."""
        return await self._hosted.upstream.evict(stage)

    async def warm(self, tenant: str, outputs: Sequence[PastOutput]) -> dict[str, Any]:
        """Insert past outputs into the trees; see :meth:`Upstream.warm`."""
        return await self._hosted.upstream.warm(tenant, outputs)

    async def __del__(self) -> None:
        """Publish all finished outputs and stop. Serve awaits this after the requests in flight."""
        if hasattr(self, "_hosted"):  # else the constructor failed
            await self._hosted.close()
