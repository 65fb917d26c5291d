"""What a server asks of an engine, and what comes back: the nouns both sides share.

No HTTP, no torch. The gateway turns OpenAI bodies into these; the embedded engine answers them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from agentspec.draft import Source
from agentspec.stages import StageKey
from agentspec.stats import SpeculationStats, StageStats

FinishReason = Literal["stop", "length", "abort", "error"]
MAX_TRACED_STEPS = 512


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How output tokens are chosen. The engine checks the ranges and raises RequestError.

    ``temperature == 0`` is greedy. ``top_k == 0`` and ``top_p == 1`` and ``min_p == 0`` are off.
    ``logprobs``: None = none, else how many alternatives per token (0 = the chosen token alone).
    ``max_tokens``: None = as many as the context holds.
    ``json_schema``: None = free text, ``{}`` = any JSON object, else a JSON schema to obey.
    ``grammar``: likewise in Lark, as llguidance reads it; it goes before ``json_schema``.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    max_tokens: int | None = None
    logprobs: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    n: int = 1
    json_schema: Mapping[str, Any] | None = None
    grammar: str | None = None
    ignore_eos: bool = False


@dataclass(frozen=True, slots=True)
class ForcedOutput:
    """An output that is dictated: the model takes every step, and its own choice of tokens is dropped.

    ``output`` is text or token ids, without the token that ends it. ``is_cut``: it was ended by its length,
    so that no end token follows.
    """

    output: str | Sequence[int]
    is_cut: bool = False


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One request as the engine sees it.

    ``prompt`` is raw text, token ids, or chat messages (OpenAI form) for the model's template.
    ``max_draft``: None = the engine's setting, 0 = no speculation. ``min_match`` likewise.
    ``prediction``: OpenAI's predicted output, put into the request's own tree.
    ``is_traced``: tell the decode steps one by one at the end; the output does not depend on it.
    ``forced``: what has to come out, one for each of ``sampling.n`` choices; what ``sampling`` says of how
    tokens are chosen and where an output ends then has no meaning.
    """

    request_id: str
    prompt: str | Sequence[int] | Sequence[Mapping[str, Any]]
    sampling: SamplingParams
    stage: StageKey
    session: str | None = None
    tools: Sequence[Mapping[str, Any]] | None = None
    max_draft: int | None = None
    min_match: int | None = None
    learn: bool = True
    prediction: str | None = None
    is_traced: bool = False
    forced: Sequence[ForcedOutput] | None = None


@dataclass(frozen=True, slots=True)
class PastOutput:
    """What a model once put out in a stage, as text: something to learn from."""

    stage: StageKey
    text: str


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log probability of one output token under the model's own distribution (before top_p etc.)."""

    token_id: int
    text: str
    logprob: float
    top: tuple[tuple[int, str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class TracedStep:
    """One decode step of one output: what was drafted, and what the model made of it.

    The step that reads the prompt is the first; it never has a draft.

    Attributes:
        source: the tree that the draft came from; NONE without a draft.
        texts: of the draft's tokens, each by itself; bytes of no whole character show as U+FFFD.
        parents: as in :class:`agentspec.draft.Draft`.
        accepted: indices of the accepted tokens that were kept, from the root down.
        own_text: of the token that the model put out besides; None if the output ended before it.
    """

    source: Source
    texts: tuple[str, ...]
    parents: tuple[int, ...]
    accepted: tuple[int, ...]
    own_text: str | None

    def describe(self) -> dict[str, Any]:
        """As clients see it; ``source`` is null and ``tokens`` empty where nothing was drafted.

        ``parents`` and ``accepted`` are indices into ``tokens``, -1 = the token before the draft.
        """
        return {
            "source": None if self.source is Source.NONE else self.source.name.lower(),
            "tokens": self.texts,
            "parents": self.parents,
            "accepted": self.accepted,
            "own": self.own_text,
        }


@dataclass(slots=True)
class GenerationDelta:
    """What one decode step added to choice ``index``; the last of a choice has ``finish_reason``.

    ``text`` never splits a UTF-8 character and never shows any part of a stop string.
    ``token_ids`` holds every token accepted in the step. On a choice's last delta ``speculation``
    tells how it went, and ``trace`` the steps of a traced request, if the engine can: the first
    ``MAX_TRACED_STEPS``. ``num_prompt_tokens`` is the same on all.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    num_prompt_tokens: int
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: FinishReason | None = None
    speculation: SpeculationStats | None = None
    trace: tuple[TracedStep, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelCard:
    """What ``/v1/models`` says of a served model."""

    name: str
    max_model_len: int
    created: int = field(default=0)


class Trees(Protocol):
    """What an engine drafts from, by text. Every call may take seconds and goes on beside decode steps."""

    def learn(self, outputs: Sequence[PastOutput]) -> int:
        """Put past outputs into the trees of their stages; the number of their tokens."""

    def evict(self, stage: StageKey) -> int:
        """Forget what the stage's own tree has learned; the bytes that this frees."""

    def save(self, path: Path) -> Mapping[str, int]:
        """Write all trees to a file; their sizes, by name.

        Raises:
            ForestFileError: it can't be written.
        """

    def load(self, path: Path) -> Mapping[str, int]:
        """Add what such a file holds; its sizes, by name.

        Raises:
            ForestFileError: it can't be read, or is of another vocabulary; nothing was changed.
        """


class Engine(Protocol):
    """An engine that can serve the gateway in-process."""

    @property
    def model(self) -> ModelCard:
        """The one model that is served."""

    @property
    def is_healthy(self) -> bool:
        """False once the engine has stopped or failed."""

    @property
    def trees(self) -> Trees | None:
        """What it drafts from; None if it keeps nothing."""

    def generate(self, request: GenerationRequest) -> AsyncIterator[GenerationDelta]:
        """Stream the answer. Closing the iterator cancels: the slot is free at the next step.

        Raises (at the first ``anext``):
            RequestError: the request is at fault; the engine goes on.
            EngineError: the engine failed.
        """

    def tokenize(
        self,
        prompt: str | Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        add_special_tokens: bool | None = None,
    ) -> list[int]:
        """The token ids that :meth:`generate` would see of raw text or chat messages. Of any length.

        ``add_generation_prompt``: let the assistant's turn begin behind the messages.
        ``add_special_tokens``: None = to raw text and not to messages, whose template has its own.

        Raises:
            RequestError: the model's template refuses the messages.
        """

    def detokenize(self, token_ids: Sequence[int]) -> str:
        """The text of ``token_ids``, special tokens written out. Raises RequestError if one is none."""

    def token_names(self, token_ids: Sequence[int]) -> list[str]:
        """Each token as the vocabulary writes it. Raises RequestError if one is none."""

    def stats(self) -> dict[StageKey, StageStats]:
        """Counters per stage since the start."""

    async def close(self) -> None:
        """Stop after the current step; requests under way end with EngineError."""
