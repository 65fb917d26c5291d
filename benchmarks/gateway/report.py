"""The results of all parts: a summary and the bars."""

from __future__ import annotations

from operator import ge, le, lt
from typing import Any

from benchmarks.harness.scorecard import Bar, Parts, Scorecard

MOST_MORE_FILES = 8  # connections open and close

BARS = (
    Bar("added to an answer or a first byte, ms, p50", "latency", "added_ms_p50", lt, 1.5),
    Bar("the same, p99", "latency", "added_ms_p99", lt, 5),
    Bar("of what LiteLLM adds, p50", "latency", "added_vs_litellm_p50", le, 0.2),
    Bar("the same, p99", "latency", "added_vs_litellm_p99", le, 0.2),
    Bar("latency: errors", "latency", "num_errors", le, 0),
    Bar("requests per second of a core", "throughput", "req_per_s_core", ge, 400),
    Bar("of LiteLLM's", "throughput", "req_per_s_core_vs_litellm", ge, 8),
    Bar("throughput: errors", "throughput", "num_errors", le, 0),
    Bar("soak: growth of memory", "soak", "soak_rss_growth", le, 0.02),
    Bar("soak: more open files", "soak", "open_files_growth", le, MOST_MORE_FILES),
    Bar("soak: errors that were not asked for", "soak", "num_errors", le, 0),
    Bar("soak: answers changed", "soak", "num_changed", le, 0),
)

SUMMED = {
    "added_ms_p50": "latency",
    "added_ms_p99": "latency",
    "litellm_added_ms_p50": "latency",
    "req_per_s_core": "throughput",
    "litellm_req_per_s_core": "throughput",
    "soak_rss_growth": "soak",
}


def summary(parts: Parts) -> dict[str, Any]:
    """Return the figures that people compare; None if a part, or LiteLLM, was not measured."""
    return {figure: parts.get(part, {}).get(figure) for figure, part in SUMMED.items()}


CARD = Scorecard("gateway", "the gateway before an engine that answers at once", BARS, summary)
