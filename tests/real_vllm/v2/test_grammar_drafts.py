"""What grammars dictate, as drafts under model runner V2, scheduled step by step or ahead of the drafts."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from benchmarks.vllm.speculators import bundled_on_cpu


@pytest.mark.slow  # three engines each
@pytest.mark.parametrize("arguments", [["guidance", "--async"], ["guidance"], ["xgrammar", "--async"]])
def test_dictated_tokens_save_steps_and_change_no_output(arguments: list[str]) -> None:
    command = [sys.executable, "-m", "tests.real_vllm.support.dictated", *arguments, "--quick"]
    environment = {**os.environ, **bundled_on_cpu().environment, "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
    none, trees, grammar = (json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{"))
    assert none["outputs"] == trees["outputs"] == grammar["outputs"]
    assert trees["steps"] <= none["steps"]
    if "guidance" in arguments:  # xgrammar's masks allow white space, which this model then writes to the end
        assert len(grammar["ended"]) == len(grammar["outputs"])
        assert grammar["steps"] < 0.3 * trees["steps"]
