from __future__ import annotations

import pytest

from agentspec.corpus.batch import ForgetStage
from agentspec.corpus.memory import OutputMemory
from agentspec.corpus.novelty import Novelty, NoveltyGate
from tests.corpus.support.replica import output


@pytest.mark.parametrize(
    ("num_accepted", "subject", "expected"),
    [
        (0, b"", Novelty.WHOLE),
        (8, b"", Novelty.WHOLE),
        (9, b"", Novelty.SKIP),
        (10, b"", Novelty.SKIP),
        (10, b"ann", Novelty.WHOLE),
    ],
)
def test_what_others_draft_as_well_is_skipped_unless_it_has_a_subject(num_accepted, subject, expected):
    gate = NoveltyGate(OutputMemory(1 << 20))
    assert gate.judge(output(range(10), subject=subject), num_accepted) is expected


def test_what_is_known_is_counted():
    memory = OutputMemory(1 << 20)
    gate = NoveltyGate(memory)
    assert gate.judge(output([1, 2, 3]), 0) is Novelty.WHOLE
    assert gate.judge(output([1, 2, 3]), 3) is Novelty.COUNT
    memory.add(output([4, 5]))
    assert gate.judge(output([4, 5]), 2) is Novelty.COUNT


def test_a_skipped_output_stays_unknown():
    memory = OutputMemory(1 << 20)
    gate = NoveltyGate(memory)
    assert gate.judge(output([1, 2, 3]), 3) is Novelty.SKIP
    assert not memory.is_known(output([1, 2, 3]))
    assert memory.recall("acme", ForgetStage(("plan",))) is None


def test_another_subject_of_a_known_output_is_published():
    gate = NoveltyGate(OutputMemory(1 << 20))
    assert gate.judge(output([1, 2], subject=b"ann"), 0) is Novelty.WHOLE
    assert gate.judge(output([1, 2], subject=b"bob"), 0) is Novelty.WHOLE
    assert gate.judge(output([1, 2], subject=b"bob"), 0) is Novelty.COUNT
