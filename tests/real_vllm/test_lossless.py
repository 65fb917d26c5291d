"""Greedy outputs of vLLM with the plugin and without, in most scenarios of the benchmark.

Runs the code of ``python -m benchmarks vllm --only lossless`` with fewer prompts.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.vllm.lossless import measure
from benchmarks.vllm.scenarios import SCENARIOS, SMALL_BATCH, SMALL_CACHE
from benchmarks.vllm.sizes import Sizes
from benchmarks.vllm.speculators import bundled_on_cpu


@pytest.mark.slow  # two servers each; the scenarios compare outputs, too
@pytest.mark.parametrize(
    "flags",
    [
        pytest.param((), id="as usual"),
        pytest.param(SMALL_BATCH, id="chunked prefill"),
        pytest.param(SMALL_CACHE, id="preemption"),
    ],
)
def test_no_token_is_changed(tmp_path: Path, flags: tuple[str, ...]) -> None:
    chosen = [one for one in SCENARIOS if one.flags == flags]
    sizes = Sizes(num_chats=14, num_clients=(8,))
    figures = measure(bundled_on_cpu(), sizes, tmp_path, lambda what: None, chosen)
    different = [one for one in figures["comparisons"] if one["num_different"]]
    assert different == []
    assert (figures["num_preemptions"] > 0) or flags != SMALL_CACHE
    drafted = [
        one["counted"]["num_accepted_tokens"] for one in figures["comparisons"] if one["speculator"] != "none"
    ]
    assert min(drafted) > 0  # otherwise nothing was tested
