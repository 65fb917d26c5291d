"""What vLLM's own grammars dictate, as drafts: fewer steps, the same outputs."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from benchmarks.vllm.speculators import bundled_on_cpu


@pytest.mark.parametrize(
    ("backend", "most_of_the_steps"),
    [
        ("guidance", 0.2),
        ("xgrammar", 0.95),  # this model then splits names into letters, so most of these tokens are refused
    ],
)
def test_dictated_tokens_save_steps_and_change_no_output(backend: str, most_of_the_steps: float) -> None:
    command = [sys.executable, "-m", "tests.real_vllm.support.dictated", backend]
    environment = {**os.environ, **bundled_on_cpu().environment, "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
    lines = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]
    plain, drafted, plain_samples, samples = lines
    assert drafted["outputs"] == plain["outputs"]
    assert drafted["steps"] < most_of_the_steps * plain["steps"]
    assert samples["steps"] < most_of_the_steps * plain_samples["steps"]
    for text in samples["texts"]:
        assert set(json.loads(text)) == {
            "explanation_of_the_query",
            "number_of_tables",
            "certainty_of_the_answer",
        }
