"""One request that vLLM runs: what the forest knows of it, and how far it may get."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from agentspec.draft import Source
from agentspec.stats import StageStats
from agentspec.vllm_plugin.tags import RequestTags


@dataclass(slots=True)
class LiveRequest:
    """A request from its first step until vLLM says that it is finished, scheduled or not.

    Attributes:
        counters: its stage's.
        num_seen: tokens of its row in vLLM's batch, prompt included, that the forest was told of.
        most_tokens: prompt and output together, at most.
        stops: token ids that end it.
        source: of the draft that was proposed last.
        starting: set while its prompt is not in the forest yet.
    """

    tags: RequestTags
    counters: StageStats
    num_prompt_tokens: int
    num_seen: int
    most_tokens: int
    stops: frozenset[int]
    source: Source = Source.NONE
    first_token_s: float = 0.0
    last_token_s: float = 0.0
    starting: Future[None] | None = None

    @property
    def has_output(self) -> bool:
        """False until its prompt was read to the end."""
        return self.first_token_s > 0

    def end(self, num_tokens: int, sampled: Sequence[int]) -> tuple[int, bool]:
        """Where its text ends, of ``num_tokens`` in its row, and whether it goes on from there.

        What a step sampled behind a stop token, or beyond the limit, is no part of the output.
        """
        goes_on = num_tokens < self.most_tokens
        if not self.stops.isdisjoint(sampled):
            first = next(place for place, token in enumerate(sampled, 1) if token in self.stops)
            num_tokens, goes_on = num_tokens - len(sampled) + first, False
        return min(num_tokens, self.most_tokens), goes_on

    def count(self, num_sampled: int, num_verified: int, now_s: float) -> None:
        """A step gave it so many tokens, of which all but one were in its draft of ``num_verified``."""
        counters = self.counters
        counters.num_output_tokens += num_sampled
        if self.has_output:
            counters.count_step(self.source, num_verified, num_sampled - 1)
        else:
            self.first_token_s = now_s
        self.last_token_s = now_s
