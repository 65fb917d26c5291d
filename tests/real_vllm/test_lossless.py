"""Greedy outputs of vLLM with the plugin and without, in most ways of serving and asking of the benchmark.

Fewer prompts than ``python -m benchmarks vllm --only lossless``, the same code.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.vllm.lossless import measure
from benchmarks.vllm.scenarios import SCENARIOS
from benchmarks.vllm.sizes import Sizes
from benchmarks.vllm.speculators import bundled_on_cpu


def test_no_token_is_changed(tmp_path: Path) -> None:
    chosen = [one for one in SCENARIOS if one.name != "no prefix cache"]  # two servers less to wait for
    sizes = Sizes(num_chats=14, num_clients=(8,))
    figures = measure(bundled_on_cpu(), sizes, tmp_path, lambda what: None, chosen)
    different = [one for one in figures["comparisons"] if one["num_different"]]
    assert different == []
    assert figures["num_preemptions"] > 0
    drafted = [
        one["counted"]["num_accepted_tokens"] for one in figures["comparisons"] if one["speculator"] != "none"
    ]
    assert min(drafted) > 0  # or nothing was tested
