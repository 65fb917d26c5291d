"""An engine that answers from recorded calls with real steps of another engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any, cast

from agentspec.errors import ConfigError, RequestError
from agentspec.generation import (
    DEFAULT_OPTIONS,
    Engine,
    ForcedOutput,
    GenerationDelta,
    GenerationRequest,
    ModelCard,
    PromptOptions,
    Trees,
)
from agentspec.recorded.calls import Prompt, RecordedAnswer
from agentspec.recorded.library import CallLibrary
from agentspec.stages import StageKey
from agentspec.stats import StageStats


class ReplayEngine:
    """An :class:`agentspec.generation.Engine` that forces ``engine`` to generate the recorded answers."""

    def __init__(self, engine: Engine, library: CallLibrary) -> None:
        self._engine = engine
        self._library = library

    @property
    def model(self) -> ModelCard:
        """The model of the engine."""
        return self._engine.model

    @property
    def is_healthy(self) -> bool:
        """True if the engine is healthy."""
        return self._engine.is_healthy

    @property
    def trees(self) -> Trees | None:
        """The trees of the engine."""
        return self._engine.trees

    async def generate(self, request: GenerationRequest) -> AsyncIterator[GenerationDelta]:
        """Stream the recorded answer.

        Raises (at the first ``anext``):
            UnrecordedCallError: no such call was recorded.
            RequestError: the request is at fault in another way; the engine continues.
            EngineError: the engine failed.
        """
        forced = await asyncio.to_thread(self._forced, request)
        answer = cast(AsyncGenerator[GenerationDelta], self._engine.generate(replace(request, forced=forced)))
        async with aclosing(answer) as deltas:
            async for delta in deltas:
                yield delta

    def _forced(self, request: GenerationRequest) -> list[ForcedOutput]:
        prompt = request.prompt
        if not isinstance(prompt, str) and prompt and isinstance(prompt[0], int):
            raise RequestError("token ids can't be looked up among recorded calls: send text", param="prompt")
        try:
            taken = self._library.take(cast(Prompt, prompt), request.sampling.n)
        except ConfigError as error:
            raise RequestError(str(error), param="messages") from None
        for line, answer in taken:
            if answer.calls and not request.tools:
                told = f"line {line} answers this conversation with calls of tools"
                raise RequestError(f"{told}: send tools", param="tools")
        return [_forced_output(answer) for _, answer in taken]

    def tokenize(
        self,
        prompt: str | Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        options: PromptOptions = DEFAULT_OPTIONS,
    ) -> list[int]:
        """Tokenize with the engine."""
        return self._engine.tokenize(prompt, tools=tools, options=options)

    def detokenize(self, token_ids: Sequence[int]) -> str:
        """Detokenize with the engine."""
        return self._engine.detokenize(token_ids)

    def token_names(self, token_ids: Sequence[int]) -> list[str]:
        """Return the engine's token names."""
        return self._engine.token_names(token_ids)

    def stats(self) -> dict[StageKey, StageStats]:
        """Return the engine's counters."""
        return self._engine.stats()

    async def close(self) -> None:
        """Close the engine."""
        await self._engine.close()


def _forced_output(answer: RecordedAnswer) -> ForcedOutput:
    text = answer.written()
    return ForcedOutput(text, is_cut=answer.is_cut and bool(text))  # an empty text has nothing to cut
