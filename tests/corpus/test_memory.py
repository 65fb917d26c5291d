from __future__ import annotations

from agentspec.corpus.batch import ForgetStage, ForgetSubject
from agentspec.corpus.memory import OutputMemory
from tests.corpus.support.replica import output


def test_an_output_is_known_with_its_subject():
    memory = OutputMemory(1 << 20)
    memory.add(output([1, 2], subject=b"ann"))
    assert memory.is_known(output([1, 2]))
    assert memory.is_known(output([1, 2], subject=b"ann"))
    assert not memory.is_known(output([1, 2], subject=b"bob"))
    assert not memory.is_known(output([1, 2], tenant="other"))
    assert not memory.is_known(output([1, 2], stage="other"))


def test_the_least_recently_used_leave_first():
    memory = OutputMemory(2500)
    outputs = [output([i]) for i in range(5)]
    for one in outputs[:4]:
        memory.add(one)
    memory.is_known(outputs[0])
    memory.add(outputs[4])
    assert [memory.is_known(one) for one in outputs] == [True, False, True, True, True]
    assert memory.num_bytes <= 2500


def test_it_recalls_what_a_tombstone_covers():
    memory = OutputMemory(1 << 20)
    mine, below, other = (
        output([1], "a", subject=b"ann"),
        output([2], "a/b", subject=b"bob"),
        output([3], "ab"),
    )
    for one in (mine, below, other):
        memory.add(one)
    memory.add(output([2], "a/b", subject=b"ann"))
    assert memory.recall("acme", ForgetStage(("a",))) == [mine, below]
    assert memory.recall("acme", ForgetSubject(b"ann")) == [mine, below]
    assert memory.recall("acme", ForgetSubject(b"bob")) == [below]
    assert memory.recall("other", ForgetSubject(b"bob")) == []
    memory.forget("acme", [below.digest])
    assert memory.recall("acme", ForgetSubject(b"ann")) == [mine]


def test_it_knows_of_whom_it_lost_outputs():
    memory = OutputMemory(1000)
    memory.add(output([1], "a/b", subject=b"ann"))
    memory.add(output([2], "c"))
    assert memory.recall("acme", ForgetSubject(b"ann")) is None
    assert memory.recall("acme", ForgetStage(("a",))) is None
    assert memory.recall("acme", ForgetStage(("b",))) == []
    assert memory.recall("acme", ForgetSubject(b"bob")) == []
    memory.forget_tenant("acme")
    assert memory.recall("acme", ForgetSubject(b"ann")) == []
    assert memory.num_bytes == 0


def test_too_many_names_mean_that_anything_may_be_lost():
    memory = OutputMemory(0)
    for number in range(70_000):
        memory.note(output([1]).stage, number.to_bytes(4, "big"))
    assert memory.recall("acme", ForgetSubject(b"never")) is None
