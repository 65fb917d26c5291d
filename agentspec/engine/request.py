"""A live request and its choices: the units of scheduling, to which a decode step adds tokens.

No torch, no model: a :class:`Choice` takes tokens and turns them into deltas; only this
module decides when it ends (eos, a stop string, its length).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from agentspec.config import DraftConfig
from agentspec.engine.pricing import Pace
from agentspec.engine.sampling.state import SamplerState
from agentspec.engine.sampling.stop import ShownTokens, StopStrings
from agentspec.generation import (
    MAX_TRACED_STEPS,
    FinishReason,
    GenerationDelta,
    GenerationRequest,
    ThinkTags,
    TokenLogprob,
    TracedStep,
)
from agentspec.proposer import Tokens
from agentspec.stats import SpeculationStats

Item = GenerationDelta | Exception  # an exception ends the whole request


class TextStream(Protocol):
    """Turns token ids into text piece by piece; ``Detokenizer`` is the real one."""

    def push(self, ids: Sequence[int]) -> str:
        """The text that is certain now."""

    def flush(self) -> str:
        """The rest, e.g. of a UTF-8 character that was never finished."""


@dataclass(slots=True, eq=False)
class LiveRequest:
    """A running request, shared by its choices.

    ``is_cancelled`` may be set by any thread at any time, even before the request is admitted. Deltas
    for the client are put into ``inbox``, in the thread of ``loop`` (see ``Outbox``). ``ended`` has the
    choices that left the decoder.
    """

    request: GenerationRequest
    loop: asyncio.AbstractEventLoop
    inbox: asyncio.Queue[Item] = field(default_factory=asyncio.Queue)
    num_prompt_tokens: int = 0
    think_tags: ThinkTags = "unknown"
    is_cancelled: bool = False
    ended: list[Choice] = field(default_factory=list)

    @property
    def is_over(self) -> bool:
        """True once all choices have left the decoder."""
        return len(self.ended) == self.request.sampling.n


@dataclass(slots=True, eq=False)
class Choice:
    """One of a request's ``n`` outputs: a sequence that occupies one KV slot while it is decoded.

    A sequence that loses its slot later prefills its prompt and its output again, and continues.

    Attributes:
        key: the proposer's id of this sequence.
        prompt_ids: int32 ``[p]``.
        stop_ids: tokens that end the output in addition to ``eos_ids``, which may be ignored.
        max_tokens: most output tokens; prompt and output fit the context together.
        num_cached: tokens of prompt and output with KV entries in the slot.
        num_reserved: tokens for which the slot has memory.
        pending_ids: accepted tokens that the proposer has not received yet.
        is_tracked: False after the proposer has failed, since it may have missed tokens of this output.
        trace: the first steps, if the request is traced.
        shown_tokens: counts the tokens with text that was sent; only with stop strings.
        pace: decides in which steps the proposer is asked for a draft; None = in all.
    """

    live: LiveRequest
    index: int
    key: str
    prompt_ids: Tokens
    sampler: SamplerState
    draft: DraftConfig
    max_tokens: int
    eos_ids: Collection[int]
    stream: TextStream
    stops: StopStrings
    shown_tokens: ShownTokens = field(default_factory=ShownTokens)
    slot: int = -1
    num_cached: int = 0
    num_reserved: int = 0
    pending_ids: list[int] = field(default_factory=list)
    is_tracked: bool = True
    finish_reason: FinishReason | None = None
    speculation: SpeculationStats = field(default_factory=SpeculationStats)
    trace: list[TracedStep] = field(default_factory=list)
    first_token_s: float = 0.0
    last_token_s: float = 0.0
    pace: Pace | None = None
    stop_ids: Collection[int] = ()

    @property
    def output_ids(self) -> list[int]:
        """The accepted tokens, eos included."""
        return self.sampler.output_ids

    @property
    def num_known(self) -> int:
        """Tokens of the prompt and of the output so far."""
        return len(self.prompt_ids) + len(self.output_ids)

    @property
    def known_ids(self) -> Tokens:
        """The prompt and the output so far, as int32."""
        if not self.output_ids:
            return self.prompt_ids
        return np.concatenate([self.prompt_ids, np.array(self.output_ids, np.int32)])

    @property
    def delivered_ids(self) -> list[int]:
        """The accepted tokens that the client receives, without tokens that contribute to a stop string."""
        return self.output_ids[: self.shown_tokens.num] if self.stops.is_hit else self.output_ids

    @property
    def is_delivered(self) -> bool:
        """True if the output has ended and its client did not disconnect before."""
        return self.finish_reason is not None and not self.live.is_cancelled

    @property
    def cached_ids(self) -> Tokens:
        """The tokens with KV entries in the slot, as int32."""
        return self.known_ids[: self.num_cached]

    @property
    def max_len(self) -> int:
        """Most tokens of prompt and output."""
        return len(self.prompt_ids) + self.max_tokens

    @property
    def most_entries(self) -> int:
        """Limit of tokens in the slot after the next pass that yields a token: known ones and a draft."""
        return min(self.num_known + self.draft.max_tokens, self.max_len)

    @property
    def is_scheduled(self) -> bool:
        """True while the sequence has a slot."""
        return self.slot >= 0

    @property
    def is_prefilling(self) -> bool:
        """True until all but the last token of prompt and output is in the KV cache; at first, all tokens."""
        return not self.output_ids or self.num_cached < self.num_known - 1

    @property
    def wants_trace(self) -> bool:
        """True if the next step is traced for the client."""
        return self.live.request.tags.trace is not None and len(self.trace) < MAX_TRACED_STEPS

    @property
    def draft_room(self) -> int:
        """Largest draft that leaves room for the token that every step adds."""
        if self.draft.is_off or not self.is_tracked:
            return 0
        return max(0, min(self.draft.max_tokens, self.max_tokens - len(self.output_ids) - 1))

    def wants_draft(self, step: int) -> bool:
        """Return True if this step of the engine asks for a draft. Call it once per step."""
        return (self.pace is None or self.pace.asks(step)) and self.draft_room > 0

    def drain_pending(self) -> Tokens:
        """Return the tokens that the proposer has not received. Each token is returned once."""
        tokens = np.array(self.pending_ids, np.int32)
        self.pending_ids.clear()
        return tokens

    def commit(self, token_ids: Sequence[int]) -> tuple[int, str]:
        """Append the tokens of one step. Return the number of kept tokens, and the text to send.

        Tokens after the token that ends the output are dropped. Sets ``finish_reason`` at the end.

        Raises:
            EngineError: the grammar library failed on this output.
        """
        kept, text = self._read(self._until_end(token_ids))
        self.output_ids.extend(kept)
        self.pending_ids.extend(kept)
        if self.sampler.grammar is not None:
            self.sampler.grammar.advance(kept)
        if self.finish_reason is not None and not self.stops.is_hit:
            text += self.stops.push(self.stream.flush())
            text += self.stops.flush()
        self._note_time()
        return len(kept), text

    def _until_end(self, token_ids: Sequence[int]) -> Sequence[int]:
        """The tokens up to eos or the length limit, which can be found without the text."""
        room = self.max_tokens - len(self.output_ids)
        for num_kept, token in enumerate(token_ids[:room], 1):
            if self._is_eos(token):
                self.finish_reason = "stop"
                return token_ids[:num_kept]
        if len(token_ids) >= room:
            self.finish_reason = "length"
        return token_ids[:room]

    def _read(self, token_ids: Sequence[int]) -> tuple[Sequence[int], str]:
        """The tokens up to the one that completes a stop string, and the text that is certain now."""
        shown = token_ids[:-1] if self.finish_reason == "stop" else token_ids  # eos has no text
        if not self.stops:
            return token_ids, self.stream.push(shown)
        text = ""
        num_early = self.sampler.params.min_tokens - len(self.output_ids)
        for num_kept, token in enumerate(shown, 1):
            read = self.stream.push([token])
            shown_text = self.stops.push(read, is_early=num_kept <= num_early)
            self.shown_tokens.add(read, shown_text)
            text += shown_text
            if self.stops.is_hit:
                self.finish_reason = "stop"
                return token_ids[:num_kept], text
        return token_ids, text

    def _is_eos(self, token: int) -> bool:
        # a finished grammar allows only eos: ignoring eos there would repeat it without end
        ignored = self.sampler.params.ignore_eos and self.sampler.grammar is None
        return (token in self.eos_ids and not ignored) or token in self.stop_ids

    def _note_time(self) -> None:
        self.last_token_s = time.perf_counter()
        if not self.first_token_s:
            self.first_token_s = self.last_token_s

    def delta(self, num_kept: int, text: str, logprobs: tuple[TokenLogprob, ...] = ()) -> GenerationDelta:
        """Return the last step's additions, for the client."""
        is_last = self.finish_reason is not None
        return GenerationDelta(
            index=self.index,
            text=text,
            token_ids=tuple(self.output_ids[len(self.output_ids) - num_kept :]),
            num_prompt_tokens=self.live.num_prompt_tokens,
            logprobs=logprobs,
            finish_reason=self.finish_reason,
            speculation=self.speculation if is_last else None,
            trace=tuple(self.trace) if is_last else (),
            think_tags=self.live.think_tags,
        )
