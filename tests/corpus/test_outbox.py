from __future__ import annotations

import math

from agentspec.corpus.batch import Erased, ForgetSubject
from agentspec.corpus.outbox import Outbox
from tests.corpus.support.replica import output

ORIGIN = b"a" * 16


def outbox(window_s: float = 0.25, batch_bytes: int = 1000) -> Outbox:
    box = Outbox(window_s, batch_bytes)
    box.epoch = 0
    return box


def test_the_first_record_is_due_at_once_and_later_ones_after_the_window():
    box = outbox()
    assert box.due_s == math.inf
    box.add(output([1]))
    assert box.due_s == -math.inf
    box.cut(ORIGIN)
    box.sent(10.0)
    box.add(output([2]))
    assert box.due_s == 10.25


def test_nothing_is_due_before_the_epoch_is_known():
    box = Outbox(0.25, 1000)
    box.add(output([1]))
    assert box.due_s == math.inf
    assert box.cut(ORIGIN) is None


def test_a_full_batch_is_due_at_once():
    box = outbox()
    box.add(output([1]))
    box.cut(ORIGIN)
    box.sent(10.0)
    box.add(output(range(100)))
    assert box.due_s == 10.25
    box.add(output([0] * 200))
    assert box.due_s == -math.inf


def test_batches_are_numbered_and_within_their_size():
    box = outbox(batch_bytes=1000)
    for number in range(5):
        box.add(output([number] * 100))
    batches = []
    while batch := box.cut(ORIGIN):
        batches.append((batch.first, len(batch.records)))
        box.sent(0.0)
    assert batches == [(0, 3), (3, 2)]


def test_a_batch_keeps_its_numbers_until_it_is_sent():
    box = outbox()
    box.add(output([1]))
    first = box.cut(ORIGIN)
    box.add(output([2]))
    assert box.cut(ORIGIN) is first
    box.sent(0.0)
    assert box.cut(ORIGIN).first == 1


def test_what_is_erased_is_withdrawn_and_a_numbered_record_leaves_its_place():
    box = outbox()
    mine, other = output([1], subject=b"ann"), output([2])
    box.add(mine)
    box.add(other)
    box.cut(ORIGIN)
    box.add(output([3], subject=b"ann"))
    box.withdraw(ForgetSubject(b"ann"))
    assert box.cut(ORIGIN).records == (Erased(), other)
    assert box.num_bytes == 0
    box.sent(0.0)
    assert box.cut(ORIGIN) is None


def test_an_erased_tenant_keeps_counting_its_records():
    box = outbox()
    box.add(output([1]))
    box.cut(ORIGIN)
    box.clear()
    assert box.cut(ORIGIN) is None
    assert box.next_number == 1
