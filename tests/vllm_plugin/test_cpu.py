from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from agentspec import Forest, StageKey
from agentspec.vllm_plugin.cpu import cores_of_parent

pytestmark = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="binding to cores is Linux's")

BOUND = """
import os, threading
from agentspec import Forest
from agentspec.vllm_plugin.cpu import cores_of_parent

one = {min(os.sched_getaffinity(0))}
os.sched_setaffinity(0, one)
before = set(os.listdir("/proc/self/task"))
forest = Forest()
with cores_of_parent():
    forest.start_threads()
after = set(os.listdir("/proc/self/task"))
assert os.sched_getaffinity(0) == one
print(*(len(os.sched_getaffinity(int(task))) for task in after - before))
"""


def test_threads_of_a_bound_process_run_on_its_parents_cores() -> None:
    found = subprocess.run(
        [sys.executable, "-c", BOUND], capture_output=True, text=True, timeout=120, check=True
    ).stdout.split()
    assert len(found) >= 2  # one that learns, one that indexes prompts
    assert set(map(int, found)) == {len(os.sched_getaffinity(0))}


def test_threads_start_once_and_a_forest_works_with_them() -> None:
    forest, stage = Forest(), StageKey.parse("a/b")
    forest.start_threads()
    before = set(os.listdir("/proc/self/task"))
    forest.start_threads()
    assert set(os.listdir("/proc/self/task")) <= before
    forest.learn(stage, np.arange(1, 9, dtype=np.int32))
    forest.start("request", stage, np.array([1, 2, 3], dtype=np.int32))
    assert list(forest.draft("request").token_ids[:2]) == [4, 5]


def test_without_a_parent_nothing_is_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    own = os.sched_getaffinity(0)
    monkeypatch.setattr(os, "getppid", lambda: 1 << 22)  # above every process id
    with cores_of_parent():
        assert os.sched_getaffinity(0) == own
    assert os.sched_getaffinity(0) == own
