"""Greedy outputs of vLLM with the plugin and without, in most scenarios of the benchmark.

Runs the code of ``python -m benchmarks vllm --only lossless`` with fewer prompts.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.vllm.lossless import measure
from benchmarks.vllm.scenarios import SCENARIOS
from benchmarks.vllm.sizes import Sizes
from benchmarks.vllm.speculators import bundled_on_cpu


def test_no_token_is_changed(tmp_path: Path) -> None:
    chosen = [one for one in SCENARIOS if one.name != "no prefix cache"]  # avoids waiting for two servers
    sizes = Sizes(num_chats=14, num_clients=(8,))
    figures = measure(bundled_on_cpu(), sizes, tmp_path, lambda what: None, chosen)
    different = [one for one in figures["comparisons"] if one["num_different"]]
    assert different == []
    assert figures["num_preemptions"] > 0
    drafted = [
        one["counted"]["num_accepted_tokens"] for one in figures["comparisons"] if one["speculator"] != "none"
    ]
    assert min(drafted) > 0  # otherwise nothing was tested
