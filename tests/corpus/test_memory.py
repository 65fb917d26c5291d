"""What a process remembers of the outputs in its trees, and of the erasures that it met."""

from __future__ import annotations

import pytest

from agentspec.corpus.batch import Batch, ForgetStage, ForgetSubject, Tombstone, repeated
from agentspec.corpus.memory import MetErasures, OutputMemory
from tests.corpus.support.replica import output


def test_it_gives_back_what_a_tombstone_covers_and_forgets_it() -> None:
    memory = OutputMemory(1 << 20)
    mine, below = output([1], "a", subject=b"ann"), output([2], "a/b", subject=b"bob")
    other, foreign = output([3], "ab"), output([4], "a", tenant="globex", subject=b"ann")
    for one in (mine, below, other, foreign):
        memory.add(one)
    before = memory.num_bytes
    assert memory.take("acme", ForgetSubject(b"eve")) == []
    assert memory.take("acme", ForgetSubject(b"ann")) == [mine]
    assert memory.num_bytes < before
    assert memory.take("acme", ForgetStage(("a",))) == [below]
    assert memory.take("acme", ForgetStage(("a",))) == []
    assert memory.take("globex", ForgetStage(("a",))) == [foreign]


def test_it_knows_of_whom_it_lost_outputs() -> None:
    memory = OutputMemory(1000)
    for one in (output([1], "a/b", subject=b"ann"), output([2], "c"), output([3], "d")):
        memory.add(one)
    assert memory.num_bytes <= 1000
    assert memory.noted_tenants() == ["acme"]
    assert memory.take("acme", ForgetSubject(b"ann")) is None
    assert memory.take("acme", ForgetStage(("a",))) is None
    assert memory.take("acme", ForgetStage(("b",))) == []
    assert memory.take("acme", ForgetSubject(b"bob")) == []
    memory.forget_tenant("acme")
    assert memory.take("acme", ForgetSubject(b"ann")) == []
    assert memory.num_bytes == 0


def test_too_many_names_mean_that_anything_may_be_lost() -> None:
    memory = OutputMemory(0)
    for number in range(70_000):
        memory.note(output([1]).stage, number.to_bytes(4, "big"))
    assert memory.take("acme", ForgetSubject(b"never")) is None


def late(met: MetErasures) -> list[int]:
    """Return the numbers of own records that are late, of five."""
    batch = Batch(bytes(16), 0, tuple(output([number], "a", subject=b"ann") for number in range(5)))
    return [number for number, _ in met.late(batch)]


@pytest.mark.parametrize("tombstone", [ForgetStage(("a",)), ForgetSubject(b"ann")])
def test_an_erasure_again_is_a_new_one_and_a_repetition_is_not(tombstone: Tombstone) -> None:
    met = MetErasures()
    met.note_applied(tombstone, 1, 0.0)
    met.note_applied(repeated(tombstone), 3, 10.0)
    assert late(met) == [0]
    met.note_applied(tombstone, 4, 20.0)
    assert late(met) == [0, 1, 2, 3]


def test_a_repetition_of_an_unknown_erasure_counts() -> None:
    met = MetErasures()
    met.note_applied(repeated(ForgetStage(("a",))), 2, 0.0)
    assert late(met) == [0, 1]
