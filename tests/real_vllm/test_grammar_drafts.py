"""What vLLM's own grammars dictate, as drafts: fewer steps, the same outputs."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from benchmarks.vllm.speculators import bundled_on_cpu

MEMBERS = ["kind", "table", "column", "filters", "group_by", "order_by", "limit"]


@pytest.mark.parametrize("backend", ["guidance", "xgrammar"])
def test_dictated_tokens_save_steps_and_change_no_output(backend: str) -> None:
    command = [sys.executable, "-m", "tests.real_vllm.support.dictated", backend]
    environment = {**os.environ, **bundled_on_cpu().environment, "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
    lines = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]
    none, trees, grammar, *sampled = lines
    assert none["outputs"] == trees["outputs"] == grammar["outputs"]
    assert trees["steps"] < 0.5 * none["steps"]
    assert grammar["steps"] < 0.9 * trees["steps"]
    ended = [json.loads(text) for one in sampled for text in one["ended"]]
    assert len(ended) > 3
    assert all(list(output) == MEMBERS for output in ended)
