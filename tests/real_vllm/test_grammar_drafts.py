"""What vLLM's own grammars dictate, as drafts: fewer steps, the same outputs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from benchmarks.vllm.speculators import bundled_on_cpu

MEMBERS = ["kind", "table", "column", "filters", "group_by", "order_by", "limit"]
CONSTANTS = ["explanation_of_the_query", "number_of_tables", "certainty_of_the_answer"]


@pytest.mark.slow  # two engines each
@pytest.mark.parametrize("backend", ["xgrammar", "guidance"])
def test_dictated_tokens_save_steps_and_change_no_output(backend: str) -> None:
    command = [sys.executable, "-m", "tests.real_vllm.support.dictated", backend]
    environment = {**os.environ, **bundled_on_cpu().environment, "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
    lines = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]
    none, trees, grammar = lines[:3]
    assert none["outputs"] == trees["outputs"] == grammar["outputs"]
    assert trees["steps"] < 0.5 * none["steps"]
    assert grammar["steps"] < 0.9 * trees["steps"]
    assert_all_have(MEMBERS, lines[3:6])

    none, _, grammar, plain_samples, _, samples = lines[6:]
    assert grammar["outputs"] == none["outputs"]
    if backend == "guidance":  # xgrammar's masks allow white space, which this model then writes to the end
        assert_all_have(CONSTANTS, [grammar, samples])
        assert grammar["steps"] < 0.2 * none["steps"]
        assert samples["steps"] < 0.2 * plain_samples["steps"]


def assert_all_have(members: list[str], generated: list[dict[str, Any]]) -> None:
    """Check the texts that ended by themselves, most of all."""
    ended = [json.loads(text) for one in generated for text in one["ended"]]
    assert 2 * len(ended) > sum(len(one["outputs"]) for one in generated)
    assert all(list(output) == members for output in ended)
