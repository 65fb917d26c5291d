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
        has_output: its prompt was read to the end.
        source: of the draft that was proposed last.
        starting: set while its prompt is not in the forest yet.
    """

    name: str
    tags: RequestTags
    counters: StageStats
    num_seen: int
    most_tokens: int
    stops: frozenset[int]
    has_output: bool = False
    source: Source = Source.NONE
    starting: Future[None] | None = None

    def end(self, num_tokens: int, sampled: Sequence[int]) -> int:
        """Where its text ends, of ``num_tokens`` in its row.

        What a step sampled behind a stop token, or beyond the limit, is no part of the output.
        """
        first = next((place for place, token in enumerate(sampled, 1) if token in self.stops), len(sampled))
        return min(num_tokens - len(sampled) + first, self.most_tokens)
