from __future__ import annotations

import math

import numpy as np
import pytest

from agentspec.corpus.batch import Count, ForgetStage, ForgetSubject, ModelUpdate, Part
from agentspec.corpus.erasure import PLACEHOLDER, Erasure
from agentspec.corpus.outbox import Outbox
from tests.corpus.support.replica import output

ORIGIN = b"a" * 16


def outbox(window_s: float = 0.25, batch_bytes: int = 1000, counts_every_s: float = 60.0) -> Outbox:
    box = Outbox(window_s, batch_bytes, counts_every_s)
    box.epoch = 0
    return box


def test_the_first_record_is_due_at_once_and_later_ones_after_the_window():
    box = outbox()
    assert box.due_s == math.inf
    box.add(output([1]))
    assert box.due_s == -math.inf
    box.cut(ORIGIN, 10.0)
    box.sent(10.0)
    box.add(output([2]))
    assert box.due_s == 10.25


def test_nothing_is_due_before_the_epoch_is_known():
    box = Outbox(0.25, 1000, 60.0)
    box.add(output([1]))
    assert box.due_s == math.inf
    assert box.cut(ORIGIN, 0.0, is_last=True) is None


def test_a_full_batch_is_due_at_once():
    box = outbox()
    box.add(output([1]))
    box.cut(ORIGIN, 10.0)
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
    while batch := box.cut(ORIGIN, 0.0):
        batches.append((batch.first, len(batch.records)))
        box.sent(0.0)
    assert batches == [(0, 3), (3, 2)]


def test_a_batch_keeps_its_numbers_until_it_is_sent():
    box = outbox()
    box.add(output([1]))
    first = box.cut(ORIGIN, 0.0)
    box.add(output([2]))
    assert box.cut(ORIGIN, 0.0) is first
    box.sent(0.0)
    assert box.cut(ORIGIN, 0.0).first == 1


def test_counts_are_summed_until_they_are_due():
    box = outbox()
    one = output([1])
    for _ in range(3):
        box.count(one, 5.0)
    assert box.cut(ORIGIN, 64.0) is None
    assert box.due_s == 65.0
    batch = box.cut(ORIGIN, 65.0)
    assert batch.records == (Count(one.digest, ("plan",), 3),)
    assert box.due_s == -math.inf
    box.sent(65.0)
    assert box.due_s == math.inf


def test_many_counts_are_due_at_once():
    box = outbox()
    for number in range(4096):
        box.count(output([number]), 5.0)
    assert box.due_s == 5.0


def test_what_is_erased_is_withdrawn_and_a_numbered_record_gets_a_placeholder():
    box = outbox()
    mine, other = output([1], subject=b"ann"), output([2])
    box.add(mine)
    box.add(other)
    box.cut(ORIGIN, 0.0)
    waiting = output([3], subject=b"ann")
    box.add(waiting)
    box.count(mine, 0.0)
    assert box.withdraw(Erasure(ForgetSubject(b"ann"), {mine.digest})) == [waiting]
    assert box.cut(ORIGIN, 0.0).records == (PLACEHOLDER, other)
    box.sent(0.0)
    assert box.cut(ORIGIN, 100.0) is None


def test_an_erased_tenant_keeps_counting_its_records():
    box = outbox()
    box.add(output([1]))
    box.cut(ORIGIN, 0.0)
    box.clear()
    assert box.cut(ORIGIN, 100.0, is_last=True) is None
    assert box.next_number == 1


def part(number: int, begin: int, *tokens: int) -> Part:
    return Part(("sql",), number, begin, np.array(tokens, "<i4").tobytes())


@pytest.mark.parametrize(
    ("waiting", "sent"),
    [
        ([part(1, 0, 5), part(1, 1, 6, 7), part(1, 3, 8)], [part(1, 0, 5, 6, 7, 8)]),
        ([part(1, 4, 5), part(2, 0, 5), part(1, 5, 6)], [part(1, 4, 5, 6), part(2, 0, 5)]),
        ([part(1, 0, 5), part(1, 2, 6), part(1, 3, 7)], [part(1, 0, 5), part(1, 2, 6, 7)]),
        ([part(1, 0, 5), part(1, 1, 6), part(1, 0)], []),
        ([part(1, 4, 5), part(1, 5, 6), part(1, 0)], [part(1, 0)]),
        ([part(1, 0, 5), part(1, 0), part(1, 0)], [part(1, 0)]),
        ([part(1, 0), part(1, 0)], [part(1, 0), part(1, 0)]),
        ([part(1, 0, 5), part(1, 0), part(2, 0, 6)], [part(2, 0, 6)]),
    ],
)
def test_parts_of_a_batch_are_joined_and_those_of_an_output_that_is_over_are_left_out(waiting, sent):
    box = outbox()
    for record in waiting:
        box.add(record)
    batch = box.cut(ORIGIN, 0.0)
    assert (list(batch.records) if batch else []) == sent
    assert box.num_bytes == 0
    assert box.next_number == len(sent)


def test_records_behind_parts_that_need_not_be_sent_are_in_the_batch():
    box = outbox(batch_bytes=132)  # a part of one token and its end
    for number in range(3):
        box.add(part(number, 0, 5))
        box.add(part(number, 0))
    box.add(output([7]))
    (record,) = box.cut(ORIGIN, 0.0).records
    assert record.tokens.tolist() == [7]


def test_an_output_is_shown_when_its_first_part_has_left():
    box = outbox()
    box.add(part(1, 0, 5))
    box.add(part(2, 4, 5))
    assert [box.was_shown(number) for number in (1, 2)] == [False, True]
    box.cut(ORIGIN, 0.0)
    assert box.was_shown(1)


def test_updates_of_models_have_batches_of_their_own_and_never_wait_for_outputs():
    box = outbox()
    for number in range(3):  # outputs in every window
        box.add(output([number]))
        box.cut(ORIGIN, 10.0)
        box.sent(10.0)
        box.add(output([9]))
        assert box.wants_updates
        box.add_update(ModelUpdate(("plan",), b"x"))
        assert box.due_s == -math.inf
        assert not box.wants_updates
        assert box.cut(ORIGIN, 10.0).records == (ModelUpdate(("plan",), b"x"),)
        box.sent(10.0)
        assert box.due_s == 10.25  # the window of the outputs goes on
        box.cut(ORIGIN, 10.25)
        box.sent(10.0)


@pytest.mark.parametrize(("epoch", "is_refused"), [(None, False), (0, True)])
def test_no_updates_are_wanted_that_could_not_be_sent(epoch, is_refused):
    box = outbox()
    box.epoch, box.is_refused = epoch, is_refused
    assert not box.wants_updates


def test_an_erasure_takes_the_updates_of_a_stage_back_and_of_a_person_all():
    box = outbox()
    for path in (("plan",), ("plan", "a"), ("other",)):
        box.add_update(ModelUpdate(path, b"x"))
    box.withdraw(Erasure(ForgetStage(("plan",))))
    assert [record.path for record in box.cut(ORIGIN, 0.0).records] == [("other",)]
    box.sent(0.0)
    for empty in (lambda: box.withdraw(Erasure(ForgetSubject(b"ann"))), box.clear):
        box.add_update(ModelUpdate(("other",), b"x"))
        empty()
        assert box.cut(ORIGIN, 0.0, is_last=True) is None
