"""A scripted engine: the Engine protocol without a model."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from agentspec.draft import Source
from agentspec.errors import ForestFileError, RequestError
from agentspec.generation import (
    FinishReason,
    GenerationDelta,
    GenerationRequest,
    ModelCard,
    PastOutput,
    ThinkTags,
    TokenLogprob,
    TopLogprob,
    TracedStep,
)
from agentspec.stages import StageKey
from agentspec.stats import SpeculationStats, StageStats

STEPS = ("Hello", ", ", "wörld", "!")
NUM_PROMPT_TOKENS = 7
SPECULATION = SpeculationStats(
    num_steps=4,
    num_drafts=3,
    num_draft_tokens=8,
    num_accepted_tokens=6,
    drafted_by_source={Source.REQUEST: 3, Source.STAGE: 5},
    accepted_by_source={Source.REQUEST: 2, Source.STAGE: 4},
)

TRACE = (
    TracedStep(Source.NONE, (), (), (), "Hello"),
    TracedStep(Source.STAGE, (", ", ". ", "wörld"), (-1, -1, 0), (0, 2), "!"),
)


@dataclass
class ScriptedTrees:
    """Trees that record the calls made to them. A token is a word. Loading a missing file fails."""

    learned: list[PastOutput] = field(default_factory=list)
    evicted: list[StageKey] = field(default_factory=list)

    def learn(self, outputs: Sequence[PastOutput]) -> int:
        self.learned.extend(outputs)
        return sum(len(output.text.split()) for output in outputs)

    def evict(self, stage: StageKey) -> int:
        self.evicted.append(stage)
        return 4096

    def save(self, path: Path) -> dict[str, int]:
        try:
            return {"num_outputs": len(self.learned), "num_bytes": path.write_text("trees")}
        except OSError as error:
            raise ForestFileError(str(error)) from error

    def load(self, path: Path) -> dict[str, int]:
        try:
            return {"num_outputs": 1, "num_bytes": len(path.read_text())}
        except OSError as error:
            raise ForestFileError(str(error)) from error


@dataclass
class ScriptedEngine:
    """An engine that responds to every request with ``steps``, one delta of two tokens each.

    ``refusal`` is raised before the first delta. ``failure`` is raised after the last step, instead of
    finishing with ``end``. With ``is_silent`` no delta is ever sent. With ``is_endless`` dots follow the
    steps until the stream is closed.
    """

    steps: tuple[str, ...] = STEPS
    end: FinishReason = "stop"
    refusal: Exception | None = None
    failure: Exception | None = None
    is_silent: bool = False
    is_endless: bool = False
    can_trace: bool = True
    think_tags: ThinkTags = "unknown"
    is_healthy: bool = True
    model: ModelCard = field(default_factory=lambda: ModelCard("scripted", 4096, 1_700_000_000))
    requests: list[GenerationRequest] = field(default_factory=list)
    counters: dict[StageKey, StageStats] = field(default_factory=dict)
    started: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)
    tokenized: list[tuple[Any, dict[str, Any]]] = field(default_factory=list)
    num_closed: int = 0
    trees: ScriptedTrees | None = field(default_factory=ScriptedTrees)

    @property
    def last(self) -> GenerationRequest:
        return self.requests[-1]

    async def generate(self, request: GenerationRequest) -> AsyncIterator[GenerationDelta]:
        self.requests.append(request)
        self._count(request)
        self.started.set()
        try:
            if self.refusal is not None:
                raise self.refusal
            if self.is_silent:
                await asyncio.Event().wait()
            for delta in self._script(request):
                yield delta
                await asyncio.sleep(0)
            while self.is_endless:
                yield GenerationDelta(0, ".", (1,), NUM_PROMPT_TOKENS)
                await asyncio.sleep(0.01)
        finally:
            self.released.set()

    def tokenize(self, prompt: str | Sequence[Mapping[str, Any]], **options: Any) -> list[int]:
        """Return a token per character of the prompt, or of the JSON of messages."""
        self.tokenized.append((prompt, options))
        return [ord(char) for char in (prompt if isinstance(prompt, str) else json.dumps(prompt))]

    def detokenize(self, token_ids: Sequence[int]) -> str:
        return "".join(self.token_names(token_ids))

    def token_names(self, token_ids: Sequence[int]) -> list[str]:
        try:
            return [chr(token_id) for token_id in token_ids]
        except (ValueError, OverflowError):
            raise RequestError(f"no token: {token_ids!r}", param="tokens") from None

    def stats(self) -> dict[StageKey, StageStats]:
        return self.counters

    async def close(self) -> None:
        self.num_closed += 1

    def _script(self, request: GenerationRequest) -> Iterator[GenerationDelta]:
        for position, text in enumerate(self.steps):
            is_last = position == len(self.steps) - 1
            for index in range(request.sampling.n):
                delta = GenerationDelta(index, text, (position, position + 100), NUM_PROMPT_TOKENS)
                delta.think_tags = self.think_tags
                if request.sampling.logprobs is not None:
                    delta.logprobs = _logprobs(position, text, request.sampling.logprobs)
                if is_last and self.failure is not None:
                    raise self.failure
                if is_last and not self.is_endless:
                    trace = TRACE if request.tags.trace and self.can_trace else ()
                    delta = replace(delta, finish_reason=self.end, speculation=SPECULATION, trace=trace)
                yield delta

    def _count(self, request: GenerationRequest) -> None:
        stats = self.counters.setdefault(request.tags.stage, StageStats(tree_bytes=4096))
        stats.num_requests += 1
        stats.num_prompt_tokens += NUM_PROMPT_TOKENS
        stats.num_output_tokens += 2 * len(self.steps)
        stats.num_steps += SPECULATION.num_steps
        stats.num_draft_tokens += SPECULATION.num_draft_tokens
        stats.num_accepted_tokens += SPECULATION.num_accepted_tokens
        for source, num in SPECULATION.accepted_by_source.items():
            stats.accepted_by_source[source] = stats.accepted_by_source.get(source, 0) + num


def _logprobs(token_id: int, text: str, num_top: int) -> tuple[TokenLogprob, ...]:
    top = tuple(TopLogprob(token_id + rank, f"{text}{rank}", -0.25 - rank) for rank in range(num_top))
    return (TokenLogprob(token_id, text, -0.25, top),)


FIGURES = {
    "num_spec_steps": 4,
    "num_draft_tokens": 8,
    "num_accepted_draft_tokens": 6,
    "mean_acceptance_length": 2.5,
    "draft_acceptance_rate": 0.75,
    "draft_tokens_by_source": {"request": 3, "session": 0, "stage": 5, "workflow": 0, "tenant": 0},
    "accepted_tokens_by_source": {"request": 2, "session": 0, "stage": 4, "workflow": 0, "tenant": 0},
}
