"""One request in vLLM: its tags, and its share of its stage's counters."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentspec.draft import Source
from agentspec.forest import RowCounts
from agentspec.stages import StageKey
from agentspec.stats import StageStats
from agentspec.tags import Tags
from agentspec.vllm_plugin.delivery import Call, StopStrings
from agentspec.vllm_plugin.traces import Trace

if TYPE_CHECKING:
    from vllm.sampling_params import SamplingParams


@dataclass(slots=True)
class LiveRequest:
    """A request from its first step until vLLM reports its end, scheduled or not.

    Attributes:
        name: vLLM's id of the request; a later request may have the same.
        key: name of the request in the forest.
        trees: the forest's key of its trees.
        counters: counters of its stage.
        num_prompt_tokens: length of its prompt.
        num_tokens: number of prompt and output tokens that model runner V1 has reported.
        stop_tokens: tokens at which vLLM's scheduler ends the request.
        stops: its stop strings; None without any.
        is_answered_at_end: True if the client receives nothing before the end of the call.
        call: the requests of the same call; None for a call with one request.
        params, prompt_token_ids: vLLM's, to read the output as vLLM does.
        starting: pending start of a request with a prediction; None once it is in the forest.
        trace: trace of its steps, if it is traced.
    """

    name: str
    key: str
    tags: Tags
    trees: StageKey
    counters: StageStats
    num_prompt_tokens: int
    num_tokens: int
    stop_tokens: frozenset[int] = frozenset()
    stops: StopStrings | None = None
    is_answered_at_end: bool = False
    call: Call | None = None
    params: SamplingParams | None = None
    prompt_token_ids: Sequence[int] = ()
    starting: Future[int] | None = None
    trace: Trace | None = None

    @property
    def is_counted_at_end(self) -> bool:
        """True if the delivered part of the output is unknown before the end of the request."""
        return self.stops is not None or self.is_answered_at_end

    def count(self, counts: RowCounts) -> None:
        """Add the counts of the request's row to its stage."""
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
        _, num_fleet, num_snapshot = counts.accepted_by_origin
        stage.count_origins(num_fleet, num_snapshot)
