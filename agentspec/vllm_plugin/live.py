"""One request in vLLM: its tags, and its share of its stage's counters."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentspec.draft import SHARED, Source
from agentspec.forest import RowCounts
from agentspec.stages import StageKey
from agentspec.stats import StageStats
from agentspec.tags import Tags
from agentspec.vllm_plugin.traces import Trace

if TYPE_CHECKING:
    from agentspec.corpus.written import WrittenOutput


@dataclass(slots=True)
class LiveRequest:
    """A request from its first step until vLLM reports its end, scheduled or not.

    Attributes:
        trees: the forest's key for its trees.
        counters: counters of its stage.
        num_prompt_tokens: length of its prompt.
        starting: pending start of a request with a prediction; None once it is in the forest.
        trace: trace of its steps, if it is traced.
        num_accepted_from_shared: tokens that shared trees drafted and the model accepted, as far as counted.
        written: shows its output to other engines.
    """

    name: str
    tags: Tags
    trees: StageKey
    counters: StageStats
    num_prompt_tokens: int
    starting: Future[int] | None = None
    trace: Trace | None = None
    num_accepted_from_shared: int = 0
    written: WrittenOutput | None = None

    def count(self, counts: RowCounts) -> None:
        """Add the counts of its row to its stage and to its trace."""
        if self.trace is not None:
            self.trace.count(counts)
        stage = self.counters
        stage.num_output_tokens += counts.num_output_tokens
        stage.decode_s += counts.decode_s
        stage.measured_decode_s += counts.measured_decode_s
        stage.plain_decode_s += counts.plain_decode_s
        stage.num_steps += counts.num_steps
        stage.num_drafts += counts.num_drafts
        if not counts.num_drafts:
            return
        for source, drafted, accepted in zip(Source, counts.drafted, counts.accepted, strict=True):
            if drafted:
                stage.add_drafted(source, drafted, accepted)
            if source in SHARED:
                self.num_accepted_from_shared += accepted
        _, num_fleet, num_snapshot = counts.accepted_by_origin
        stage.count_origins(num_fleet, num_snapshot)
