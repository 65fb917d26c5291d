"""Outputs that wait to be published: the queue, then an outbox."""

from __future__ import annotations

import math
import threading

from agentspec.corpus.batch import Erased, ForgetSubject
from agentspec.corpus.outbox import FinishedOutput, Outbox, OutputQueue
from agentspec.forest.sessions import session_hash
from tests.corpus.support.replica import output

TIMEOUT_S = 60.0


def finished(*tokens: int, **more) -> FinishedOutput:
    one = output(tokens, **more)
    return FinishedOutput(one.stage, one.tokens, one.subject, 60.0 * one.minute)


def test_outputs_leave_in_their_order():
    queue = OutputQueue(1 << 20)
    sent = [finished(number) for number in range(5)]
    for one in sent:
        queue.put(one)
    assert queue.take() == sent
    assert queue.take() == []


def test_the_oldest_are_dropped_and_their_names_kept():
    queue = OutputQueue(1000)
    for number in range(16):  # so many are counted together
        queue.put(finished(number, subject=b"ann" if number == 0 else b""))
    assert [one.output.tokens.tolist() for one in queue.take()] == [[14], [15]]
    assert queue.num_dropped == 14
    assert {subject for _, subject in queue.take_dropped()} == {b"ann", b""}
    assert queue.take_dropped() == set()


def test_few_more_than_the_limit_ever_wait():
    queue = OutputQueue(10_000)
    for number in range(1000):
        queue.put(finished(number))
    taken = [one.output.tokens.tolist() for one in queue.take()]
    assert len(taken) + queue.num_dropped == 1000
    assert taken == [[number] for number in range(1000 - len(taken), 1000)]
    one_bytes = finished(1).num_bytes
    assert len(taken) * one_bytes <= 10_000 + 16 * one_bytes


def test_outputs_larger_than_the_queue_are_dropped():
    queue = OutputQueue(1000)
    for _ in range(16):
        queue.put(finished(*range(400)))
    assert queue.take() == []
    assert queue.num_dropped == 16


def test_what_comes_during_a_withdrawal_is_counted_once():
    queue = OutputQueue(100 * finished(1).num_bytes)
    for number in range(40):
        queue.put(finished(number))

    new = iter(range(1000, 1040))

    def is_covered(*_: object) -> bool:
        for number in new:
            queue.put(finished(number))
        return False

    assert queue.withdraw(is_covered) == []
    for number in range(40, 60):
        queue.put(finished(number))
    assert queue.num_dropped == 0
    for number in range(60, 200):
        queue.put(finished(number))
    left = queue.take()
    assert 100 <= len(left) <= 116  # at most 16 are not counted
    assert [one.token_ids.tolist() for one in left][-1] == [199]


def test_a_long_output_is_counted_at_once():
    queue = OutputQueue(1000)
    queue.put(finished(*range(5000)))
    assert queue.num_dropped == 1
    assert queue.take() == []


def test_nothing_is_lost_between_writers_and_a_reader():
    queue = OutputQueue(1 << 30)
    writers = [
        threading.Thread(target=lambda first=first: [queue.put(finished(first + i)) for i in range(500)])
        for first in (0, 500, 1000)
    ]
    taken = []
    for one in writers:
        one.start()
    while any(one.is_alive() for one in writers):
        taken += queue.take()
    taken += queue.take()
    assert sorted(one.token_ids.tolist() for one in taken) == [[number] for number in range(1500)]
    assert queue.num_dropped == 0


def test_what_is_covered_is_withdrawn_and_the_rest_keeps_its_order():
    queue = OutputQueue(1 << 20)
    for number in range(6):
        queue.put(finished(number, subject=b"ann" if number % 2 == 0 else b""))
    withdrawn = queue.withdraw(lambda _, subject: subject == b"ann")
    queue.put(finished(7))
    assert [one.tokens.tolist() for one in withdrawn] == [[0], [2], [4]]
    assert [list(one.token_ids) for one in queue.take()] == [[1], [3], [5], [7]]


def test_a_reader_waits_for_an_output():
    queue = OutputQueue(1 << 20)
    read = threading.Event()

    def wait() -> None:
        queue.wait(TIMEOUT_S)
        read.set()

    thread = threading.Thread(target=wait)
    thread.start()
    queue.put(finished(1))
    assert read.wait(TIMEOUT_S)
    thread.join()


def test_a_wait_ends_if_it_is_woken_before_it_begins():
    queue = OutputQueue(1 << 20)
    queue.wake()
    queue.wait(TIMEOUT_S)
    queue.put(finished(1))
    queue.wait(TIMEOUT_S)  # there is one


def test_tokens_in_a_list_are_converted_when_they_are_read():
    one = finished(1, 2, 3)
    listed = one._replace(token_ids=[1, 2, 3])
    assert listed.output.digest == one.output.digest
    assert listed.num_bytes > one.num_bytes


def test_a_session_is_hashed_when_the_output_is_made() -> None:
    """Not on the path of an answer. A name and its hash are the same session."""
    named = finished(1, 2)._replace(session="run 7")
    run = session_hash(named.stage.tenant, "run 7")
    assert named.output.session == named._replace(session=run).output.session == run
    assert named._replace(session=b"").output.session == b""


def test_the_name_of_a_session_counts() -> None:
    one = finished(1, 2)
    assert one._replace(session="x" * 1000).num_bytes >= one.num_bytes + 900


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
