"""What vLLM's own grammars dictate, as drafts: fewer steps, the same outputs."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from benchmarks.vllm.speculators import bundled_on_cpu


def test_dictated_tokens_save_steps_and_change_no_output() -> None:
    command = [sys.executable, "-m", "tests.real_vllm.support.dictated", "guidance"]
    environment = {**os.environ, **bundled_on_cpu().environment, "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
    lines = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]
    plain, drafted, plain_samples, samples = lines
    assert drafted["outputs"] == plain["outputs"]
    assert drafted["steps"] < 0.2 * plain["steps"]
    assert samples["steps"] < 0.2 * plain_samples["steps"]
    for text in samples["texts"]:
        assert set(json.loads(text)) == {
            "explanation_of_the_query",
            "number_of_tables",
            "certainty_of_the_answer",
        }
