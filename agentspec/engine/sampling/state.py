"""The inputs of sampling other than the logits. No torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from agentspec.errors import RequestError
from agentspec.generation import SamplingParams
from agentspec.proposer import Tokens

if TYPE_CHECKING:
    from agentspec.engine.sampling.grammar import Grammar

GREEDY_BELOW = 1e-5  # a lower temperature than this is greedy decoding, up to rounding
MAX_LOGPROBS = 20
MAX_CHOICES = 128
MAX_STOPS = 16
LEAST_REPETITION_PENALTY = 0.01


@dataclass(slots=True, eq=False)
class SamplerState:
    """The inputs of one output's sampling other than the logits.

    Attributes:
        params: the request's sampling parameters.
        seed: key of this output's random numbers, any integer.
        output_ids: the accepted tokens so far; the owner appends to it.
        grammar: the grammar to obey, if any; the owner advances it.
        forced_ids: int32 ``[n]``, the dictated output, which replaces the logits' choice. ``params`` are then
            those of plain greedy decoding.
        prompt_ids: int32 ``[p]``, for the repetition penalty.
        bad_words: tokens of each text that must not be put out.
        end_ids: tokens that would end the output, banned before ``params.min_tokens``.
    """

    params: SamplingParams
    seed: int = 0
    output_ids: list[int] = field(default_factory=list)
    grammar: Grammar | None = None
    forced_ids: Tokens | None = None
    prompt_ids: Tokens | None = None
    bad_words: tuple[tuple[int, ...], ...] = ()
    end_ids: frozenset[int] = frozenset()

    @property
    def is_greedy(self) -> bool:
        """True if the most likely allowed token is taken."""
        return self.params.temperature < GREEDY_BELOW

    @property
    def has_penalty(self) -> bool:
        """True if tokens of the output, or of the prompt, are made less (or more) likely."""
        params = self.params
        return params.presence_penalty != 0 or params.frequency_penalty != 0 or params.repetition_penalty != 1

    @property
    def is_too_short(self) -> bool:
        """True if the output must not end with its next token."""
        return len(self.output_ids) < self.params.min_tokens

    @property
    def has_bans(self) -> bool:
        """True if tokens are excluded by other means than a grammar."""
        return bool(self.bad_words) or self.params.allowed_token_ids is not None or self.is_too_short

    @property
    def is_edited(self) -> bool:
        """True if the logits are changed before a token is chosen, by other means than a grammar."""
        return self.has_penalty or bool(self.params.logit_bias) or self.has_bans

    @property
    def is_plain(self) -> bool:
        """True if the token is the argmax of the raw logits: one batched call serves all such rows."""
        return self.is_greedy and not self.is_edited and self.grammar is None and self.forced_ids is None

    @property
    def is_only_constrained(self) -> bool:
        """True if the token is the argmax of the raw logits among those that the grammar allows."""
        return self.is_greedy and not self.is_edited and self.grammar is not None


def check_sampling(params: SamplingParams) -> None:
    """Raise RequestError, naming the field, if a parameter is out of range."""
    for name in ("n", "max_tokens", "top_k", "logprobs", "seed"):
        value = getattr(params, name)
        if not isinstance(value, int | None):
            raise RequestError(f"{name} must be an integer, not {value!r}", param=name)
    _check("temperature", params.temperature, 0.0, 2.0)
    _check("presence_penalty", params.presence_penalty, -2.0, 2.0)
    _check("frequency_penalty", params.frequency_penalty, -2.0, 2.0)
    _check("repetition_penalty", params.repetition_penalty, LEAST_REPETITION_PENALTY, 2.0)
    _check("min_p", params.min_p, 0.0, 1.0)
    _check("top_k", params.top_k, 0, 1 << 31)
    _check("n", params.n, 1, MAX_CHOICES)
    _check("top_p", params.top_p, 0.0, 1.0)
    if params.top_p == 0:
        raise RequestError("top_p must be above 0", param="top_p")
    if params.max_tokens is not None and params.max_tokens < 1:
        raise RequestError(f"max_tokens must be at least 1, not {params.max_tokens!r}", param="max_tokens")
    if params.min_tokens > (params.min_tokens if params.max_tokens is None else params.max_tokens):
        raise RequestError(
            f"min_tokens must be at most max_tokens={params.max_tokens!r}, not {params.min_tokens!r}",
            param="min_tokens",
        )
    if params.logprobs is not None:
        _check("logprobs", params.logprobs, 0, MAX_LOGPROBS)
    if len(params.stop) > MAX_STOPS or "" in params.stop:
        raise RequestError(
            f"stop must be at most {MAX_STOPS} non-empty strings, not {params.stop!r}", param="stop"
        )


def _check(name: str, value: float, low: float, high: float) -> None:
    if not (isinstance(value, int | float) and low <= value <= high):  # so that NaN fails too
        raise RequestError(f"{name} must be between {low} and {high}, not {value!r}", param=name)
