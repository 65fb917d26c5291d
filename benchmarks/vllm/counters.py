"""vLLM's own counters, read from its ``/metrics``; they do not depend on the drafter."""

from __future__ import annotations

from dataclasses import dataclass, fields

from prometheus_client.parser import text_string_to_metric_families

_SAMPLES = {
    "num_requests": "vllm:request_success_total",
    "num_output_tokens": "vllm:generation_tokens_total",
    "num_draft_tokens": "vllm:spec_decode_num_draft_tokens_total",
    "num_accepted_tokens": "vllm:spec_decode_num_accepted_tokens_total",
    "num_preemptions": "vllm:num_preemptions_total",
    "num_batches": "vllm:iteration_tokens_total_count",
}


@dataclass(frozen=True, slots=True)
class Counters:
    """Counts since the server's start, or between two moments; ``num_batches`` are steps of the engine."""

    num_requests: int = 0
    num_output_tokens: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_preemptions: int = 0
    num_batches: int = 0

    @classmethod
    def parse(cls, text: str) -> Counters:
        """Parse Prometheus' text format; missing samples count as 0, engines and labels are summed up."""
        totals: dict[str, float] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                totals[sample.name] = totals.get(sample.name, 0.0) + sample.value
        return cls(**{name: int(totals.get(sample, 0)) for name, sample in _SAMPLES.items()})

    def __add__(self, other: Counters) -> Counters:
        return Counters(*(getattr(self, one.name) + getattr(other, one.name) for one in fields(self)))

    def __sub__(self, before: Counters) -> Counters:
        return Counters(*(getattr(self, one.name) - getattr(before, one.name) for one in fields(self)))

    @property
    def num_steps(self) -> int:
        """Number of (request, decode step) pairs.

        A step gives one token and the accepted ones; prefill gives the first. vLLM's ``num_drafts`` omits
        steps without a draft.
        """
        return self.num_output_tokens - self.num_requests - self.num_accepted_tokens

    @property
    def accepted_per_step(self) -> float:
        """Mean output tokens per decode step; 1.0 = no speculation; 0 without steps."""
        return 1 + self.num_accepted_tokens / self.num_steps if self.num_steps > 0 else 0.0

    @property
    def acceptance_rate(self) -> float:
        """Accepted draft tokens / draft tokens; 0 without drafts."""
        return self.num_accepted_tokens / self.num_draft_tokens if self.num_draft_tokens else 0.0
