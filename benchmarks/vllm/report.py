"""The results of all parts: a summary and the bars."""

from __future__ import annotations

from operator import ge, le, lt
from typing import Any

from benchmarks.harness.scorecard import Bar, Parts, Scorecard

COMPARED = ("lossless", "sql", "soak")

BARS = (
    Bar("prompts compared", "lossless", "num_prompts", ge, 200, is_summed=False),
    Bar("outputs that differ", "lossless", "num_different", le, 0, is_summed=False),
    Bar("preemptions forced", "lossless", "num_preemptions", ge, 1, is_summed=False),
    Bar("accepted per step, of suffix's", "sql", "accepted_per_step_gain_vs_suffix", ge, 1.15),
    Bar("wall time, of suffix's", "sql", "wall_vs_suffix", le, 1.0, is_summed=False),
    Bar("throughput, of none's, one at a time", "sql", "throughput_vs_none_c1", ge, 1.8),
    Bar("propose, suffix's time / ours", "propose", "propose_speedup_b64", ge, 8),
    Bar("propose, ms", "propose", "propose_ms_b64", lt, 1),
    Bar("soak: growth of memory", "soak", "soak_rss_growth", lt, 0.03),
    Bar("soak: outputs that differ", "soak", "num_different", le, 0, is_summed=False),
    Bar("soak: errors", "soak", "num_errors", le, 0, is_summed=False),
    Bar("restart, of warm acceptance", "warm", "warm_restart_acceptance", ge, 0.95),
    Bar("worker calls for the gateway's figures", "warm", "control_rpcs_per_figures", le, 1),
)


def summary(parts: Parts) -> dict[str, Any]:
    """Return the figures that people compare; None if a part was not measured."""
    compared = [parts[name]["outputs_identical"] for name in COMPARED if name in parts]
    return {
        "outputs_identical": all(compared) if compared else None,
        **{bar.figure: bar.value(parts) for bar in BARS if bar.is_summed},
    }


CARD = Scorecard("vllm", "vLLM with the plugin", BARS, summary)
