"""A forest in a forked process: the parent's stays intact, the child's raises an error."""

from __future__ import annotations

import subprocess
import sys

import pytest

SETUP = """
import os, sys
import numpy as np
from agentspec import Forest, ForestConfig, StageKey
from agentspec.errors import ForkedForestError
from agentspec.forest import RowStep

stage, tokens = StageKey.parse("w/s"), np.arange(100, dtype=np.int32)

def made():
    forest = Forest(ForestConfig(threads=2))
    for i in range(20):  # so many are shared out among threads
        forest.start(f"r{i}", stage, tokens, wait=False)
        forest.wait(f"r{i}")
    forest.step([(f"r{i}", tokens[:3]) for i in range(20)])
    return forest

def step_of(rows):
    step = RowStep(rows, [], {}, np.zeros(0, np.int32), np.zeros((0, 9)).astype(np.int64), *drafts, 0.0)
    step.run()
    if step.error:
        raise ForkedForestError(step.error)

drafts = np.zeros((0, 8), np.int64), np.zeros((0, 8), np.float32)

def ends_well(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

forest = made()
rows = forest.rows()
step_of(rows)
child = os.fork()
"""

USED = """
calls = [
    lambda: forest.start("b", stage, tokens), lambda: forest.start("b", stage, tokens, wait=False),
    lambda: forest.wait("r0"), lambda: forest.observe("r0", tokens), lambda: forest.draft("r0"),
    lambda: forest.step([("r0", tokens)]), lambda: forest.finish("r0"), lambda: forest.learn(stage, tokens),
    lambda: forest.evict(StageKey.parse("unknown")), lambda: forest.memory_bytes(stage),
    lambda: forest.save("/nowhere", vocabulary="v"), lambda: forest.load("/nowhere", vocabulary="v"),
    lambda: forest.rows(), lambda: step_of(rows), lambda: forest.settle(), lambda: forest.number("r0"),
    lambda: forest.stats(), lambda: forest.check_integrity(), lambda: forest.config,
]
if child == 0:
    for call in calls:
        try:
            call()
        except ForkedForestError as error:
            assert "fork" in str(error)
        else:
            sys.exit("it worked")
    forest = made()  # a new one does
    sys.exit(0)
assert ends_well(child)
forest.step([("r0", tokens)])
forest.check_integrity()
"""

DROPPED = """
if child == 0:
    del forest
    sys.exit(0)
assert ends_well(child)
"""

LEFT = """
if child > 0:
    assert ends_well(child)
"""


@pytest.mark.parametrize("script", [USED, DROPPED, LEFT], ids=["used", "dropped", "left"])
def test_a_forest_in_a_forked_process(script):
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", SETUP + script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
