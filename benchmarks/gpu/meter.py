"""Counts what an engine reports after each step; knows nothing of vLLM but the names of these reports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any

FULL_GRAPH = "FULL"


@dataclass(slots=True)
class Meter:
    """Counts since :meth:`start`.

    Attributes:
        num_first_tokens: tokens that prompts gave; all others are of decode steps.
        decode_gaps_s: time from step to step, without steps that ended a prompt.
        graphs: steps by CUDA graph mode; empty unless vLLM reports it.
    """

    num_steps: int = 0
    num_tokens: int = 0
    num_first_tokens: int = 0
    num_prompt_tokens: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_preemptions: int = 0
    decode_gaps_s: list[float] = field(default_factory=list)
    graphs: Counter[str] = field(default_factory=Counter)
    _last_s: float | None = None

    def take(self, step: Any, outputs: Any, now_s: float) -> None:
        """Add vLLM's ``SchedulerStats`` of one step and the ``IterationStats`` of its outputs, if any."""
        num_first = len(outputs.time_to_first_tokens_iter) if outputs is not None else 0
        if outputs is not None:
            self.num_tokens += outputs.num_generation_tokens
            self.num_first_tokens += num_first
            self.num_prompt_tokens += outputs.num_prompt_tokens
            self.num_preemptions += outputs.num_preempted_reqs
        if step is None:
            return
        self.num_steps += 1
        if self._last_s is not None and not num_first:
            self.decode_gaps_s.append(now_s - self._last_s)
        self._last_s = now_s
        if step.spec_decoding_stats is not None:
            self.num_draft_tokens += step.spec_decoding_stats.num_draft_tokens
            self.num_accepted_tokens += step.spec_decoding_stats.num_accepted_tokens
        if step.cudagraph_stats is not None:
            self.graphs[step.cudagraph_stats.runtime_mode] += 1

    def figures(self, wall_s: float) -> dict[str, Any]:
        """Return the figures of the steps in ``wall_s``."""
        num_decoded = self.num_tokens - self.num_first_tokens
        num_rows = num_decoded - self.num_accepted_tokens
        return {
            "wall_s": wall_s,
            "num_tokens": self.num_tokens,
            "num_prompt_tokens": self.num_prompt_tokens,
            "num_preemptions": self.num_preemptions,
            "tokens_per_s": self.num_tokens / wall_s,
            "tokens_per_step": num_decoded / num_rows if num_rows > 0 else None,
            "step_ms": 1e3 * wall_s / self.num_steps if self.num_steps else None,
            "decode_step_ms": 1e3 * median(self.decode_gaps_s) if self.decode_gaps_s else None,
            "drafted_per_step": self.num_draft_tokens / num_rows if num_rows > 0 else None,
            "acceptance_rate": _share(self.num_accepted_tokens, self.num_draft_tokens),
            "full_graphs": _share(self.graphs[FULL_GRAPH], self.graphs.total()),
            "graphs": dict(self.graphs),
        }


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def percentiles_ms(seconds: list[float]) -> Mapping[str, float | None]:
    """Return the median and the 90th percentile in ms; None without values."""
    ordered = sorted(seconds)
    at = (
        {name: ordered[int(share * (len(ordered) - 1))] for name, share in (("p50", 0.5), ("p90", 0.9))}
        if ordered
        else {}
    )
    return {name: 1e3 * at[name] if name in at else None for name in ("p50", "p90")}
