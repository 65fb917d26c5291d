"""The interface between a server and an engine: requests, responses and their parts.

No HTTP, no torch. The gateway turns OpenAI bodies into these types. The embedded engine answers them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

from agentspec.draft import Source
from agentspec.stages import StageKey
from agentspec.stats import SpeculationStats, StageStats
from agentspec.tags import Tags

FinishReason = Literal["stop", "length", "abort", "error"]
ThinkTags = Literal["unknown", "known", "open"]
THINK_OPEN, THINK_CLOSE = "<think>", "</think>"
MAX_TRACED_STEPS = 512


@dataclass(frozen=True, slots=True)
class WrittenConstraint:
    """A form for the output in a client's own words.

    It is a ``regex``, a ``grammar`` in GBNF or Lark, or a ``choice``, a JSON list of texts.
    """

    kind: Literal["regex", "grammar", "choice"]
    text: str


@dataclass(frozen=True, slots=True)
class LateStop:
    """A stop string that counts behind the first ``mark`` only, such as the beginning of a second call."""

    mark: str
    stop: str


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Settings for choosing output tokens. The engine checks the ranges and raises RequestError.

    ``temperature == 0`` is greedy. ``top_k == 0``, ``top_p == 1`` and ``min_p == 0`` are off.
    ``logprobs``: None = none, else the number of alternatives per token (0 = the chosen token only).
    ``max_tokens``: None = as many as the context holds.
    ``json_schema``: None = free text, ``{}`` = any JSON object, else a JSON schema to obey.
    ``written``: a client's own regex or grammar. It takes precedence over ``json_schema``.
    ``grammar``: a Lark grammar of tool calls in llguidance's dialect. With one of these two as well, the
    output obeys either. A rule that is nothing but the text of one of the model's added tokens, such as
    ``open: "<tool_call>"``, means that token.
    ``constraint_param``: the field with the schema, regex or grammar, for errors.
    ``repetition_penalty``: above 1, tokens of prompt and output are less likely; 1 = off.
    ``logit_bias``: added to the logits of tokens.
    ``allowed_token_ids``: the only tokens that may be put out; None = all.
    ``bad_words``: texts that the output must not contain. ``min_tokens``: no end, and no stop string,
    before this many tokens. ``stop_token_ids``: tokens that end the output like an end token. A grammar takes
    precedence over all these: of tokens that it allows, one is put out in any case.
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
    written: WrittenConstraint | None = None
    grammar: str | None = None
    constraint_param: str = "response_format"
    ignore_eos: bool = False
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] | None = None
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words: tuple[str, ...] = ()
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    late_stop: LateStop | None = None


@dataclass(frozen=True, slots=True)
class ForcedOutput:
    """A dictated output: the model takes every step, and its own choice of tokens is dropped.

    ``output`` is text or token ids, without the end token. ``is_cut``: the length limit ended it,
    so no end token follows.
    """

    output: str | Sequence[int]
    is_cut: bool = False


@dataclass(frozen=True, slots=True)
class PromptOptions:
    """Settings for making token ids of a prompt.

    Attributes:
        add_generation_prompt: begin the assistant's turn after the messages.
        continue_final_message: the output continues the last message, so its turn stays open.
        add_special_tokens: None = for raw text but not for messages, as their template has its own.
        variables: variables of the chat template, e.g. ``enable_thinking``.
    """

    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool | None = None
    variables: Mapping[str, Any] = field(default_factory=dict)


DEFAULT_OPTIONS = PromptOptions()


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One request to an engine.

    ``prompt`` is raw text, token ids, or chat messages (OpenAI form) for the model's template.
    ``tags``: a prediction is put into the request's own tree; a trace is returned at the end of the output.
    ``forced``: dictated outputs, one for each of ``sampling.n`` choices. They override the settings in
    ``sampling`` for token choice and for the end of an output.
    """

    request_id: str
    prompt: str | Sequence[int] | Sequence[Mapping[str, Any]]
    sampling: SamplingParams
    tags: Tags
    tools: Sequence[Mapping[str, Any]] | None = None
    forced: Sequence[ForcedOutput] | None = None
    prompt_options: PromptOptions = DEFAULT_OPTIONS


@dataclass(frozen=True, slots=True)
class PastOutput:
    """A past output of a stage, as text, to learn from."""

    stage: StageKey
    text: str


class TopLogprob(NamedTuple):
    """A token that the model could have chosen, with its log probability. Members as in TokenLogprob."""

    token_id: int
    text: str
    logprob: float
    raw: bytes | None = None


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log probability of one output token under the model's own distribution (before top_p etc.).

    Attributes:
        text: the token on its own; bytes of no whole character show as U+FFFD.
        top: the likeliest tokens.
        raw: bytes that the token adds to the output, none for a special token. None = those of ``text``.
    """

    token_id: int
    text: str
    logprob: float
    top: tuple[TopLogprob, ...] = ()
    raw: bytes | None = None


@dataclass(frozen=True, slots=True)
class TracedStep:
    """One pass of one output: its draft, and the tokens that the model accepted and added.

    The first one ended the prompt. It has a draft if the engine drafts the beginnings of outputs.

    Attributes:
        source: tree that proposed the draft; NONE without a draft.
        texts: text of each draft token on its own; bytes of no whole character show as U+FFFD.
        parents: as in :class:`agentspec.draft.Draft`.
        accepted: indices of the accepted tokens that were kept, from the root down.
        own_text: text of the model's own additional token; None if the output ended before it.
    """

    source: Source
    texts: tuple[str, ...]
    parents: tuple[int, ...]
    accepted: tuple[int, ...]
    own_text: str | None

    def describe(self) -> dict[str, Any]:
        """Return the step in the form for clients. Without a draft, ``source`` is null and ``tokens`` empty.

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
    """The result of one decode step for choice ``index``. The last one of a choice has ``finish_reason``.

    ``text`` never splits a UTF-8 character and never shows any part of a stop string.
    ``token_ids`` holds every token accepted in the step. The last delta of a choice has its ``speculation``
    counters. For a traced request it also has ``trace``, its first ``MAX_TRACED_STEPS`` steps, if the engine
    supports it. ``num_prompt_tokens`` and ``think_tags`` are the same on all.

    ``think_tags``: what ``<think>`` and ``</think>`` are in this output. "unknown" = text like any other;
    "known" = marks of the model's reasoning; "open" = the same, and the prompt ended with ``<think>``.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    num_prompt_tokens: int
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: FinishReason | None = None
    speculation: SpeculationStats | None = None
    trace: tuple[TracedStep, ...] = ()
    think_tags: ThinkTags = "unknown"


@dataclass(frozen=True, slots=True)
class ModelCard:
    """The description of a served model in ``/v1/models``.

    ``max_choices``: outputs that the engine can hold at a time, running and waiting; None = no limit.
    """

    name: str
    max_model_len: int
    created: int = field(default=0)
    max_choices: int | None = None


class Trees(Protocol):
    """The trees of an engine, by text. Every call may take seconds, concurrently with decode steps."""

    def learn(self, outputs: Sequence[PastOutput]) -> int:
        """Put past outputs into the trees of their stages and return the number of their tokens."""

    def evict(self, stage: StageKey) -> int:
        """Forget everything that the stage's own tree has learned and return the bytes freed."""

    def save(self, path: Path) -> Mapping[str, int]:
        """Write all trees to a file and return its sizes, by name.

        Raises:
            ForestFileError: it can't be written.
        """

    def load(self, path: Path) -> Mapping[str, int]:
        """Add the content of a saved file and return its sizes, by name.

        Raises:
            ForestFileError: it can't be read, or is of another vocabulary; nothing was changed.
        """


class Engine(Protocol):
    """An engine that can serve the gateway in-process."""

    @property
    def model(self) -> ModelCard:
        """The served model."""

    @property
    def is_healthy(self) -> bool:
        """False once the engine has stopped or failed."""

    @property
    def trees(self) -> Trees | None:
        """The trees that the engine drafts from; None if it has none."""

    def generate(self, request: GenerationRequest) -> AsyncIterator[GenerationDelta]:
        """Stream the answer. Closing the iterator cancels: the slot is free at the next step.

        Raises (at the first ``anext``):
            RequestError: the request is at fault; the engine continues.
            EngineError: the engine failed.
        """

    def tokenize(
        self,
        prompt: str | Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        options: PromptOptions = DEFAULT_OPTIONS,
    ) -> list[int]:
        """Return the token ids that :meth:`generate` would use for raw text or chat messages of any length.

        Raises:
            RequestError: the model's template refuses the messages.
        """

    def detokenize(self, token_ids: Sequence[int]) -> str:
        """Return the text of ``token_ids`` with special tokens. Raises RequestError if an id is invalid."""

    def token_names(self, token_ids: Sequence[int]) -> list[str]:
        """Return each token as in the vocabulary. Raises RequestError if an id is invalid."""

    def stats(self) -> dict[StageKey, StageStats]:
        """Return the counters per stage since the start."""

    async def close(self) -> None:
        """Stop after the current step. Running requests end with EngineError."""
