"""Outputs that wait to be published: the queue behind decode steps, then an outbox per tenant."""

from __future__ import annotations

import math
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from agentspec.corpus.batch import (
    MOST_RECORDS,
    Batch,
    Output,
    Record,
    Tokens,
    Tombstone,
    is_covered,
    num_token_bytes,
)
from agentspec.forest.sessions import session_hash
from agentspec.stages import StageKey

_MINUTE_S = 60
_UNCOUNTED = 16  # outputs that may wait without being counted
_LONG_TOKENS = 4096  # a longer output is counted at once
_ENTRY_BYTES = 400  # without tokens and session
_INTEGER_BYTES = 36  # of a token in a list
_RECORD_BYTES = 64  # of a record in a batch, without the tokens


class FinishedOutput(NamedTuple):
    """An output as it is put into the queue. Nothing is converted or checked on the path of an answer.

    Attributes:
        token_ids: int32 ``[n]``, or a sequence of integers.
        subject: hash of the person that its data may be of.
        ended_s: when it ended, in seconds since 1970.
        session: the run that it belongs to, by its name or its hash; an empty hash if there is none.
    """

    stage: StageKey
    token_ids: Tokens | Sequence[int]
    subject: bytes
    ended_s: float
    session: str | bytes = b""

    @property
    def output(self) -> Output:
        """The output, converted and checked. Raises as its constructor."""
        token_ids = self.token_ids
        tokens = token_ids if isinstance(token_ids, np.ndarray) else np.array(token_ids, np.int32)
        minute = int(self.ended_s) // _MINUTE_S
        session = self.session
        if isinstance(session, str):
            session = session_hash(self.stage.tenant, session)
        return Output(self.stage, tokens, self.subject, minute=minute, session=session)

    @property
    def num_bytes(self) -> int:
        """Its size, estimated."""
        other = _ENTRY_BYTES + sys.getsizeof(self.session)
        if isinstance(self.token_ids, np.ndarray):
            return self.token_ids.nbytes + other
        return _INTEGER_BYTES * len(self.token_ids) + other


DroppedName = tuple[StageKey, bytes]  # and the subject
# the members of a FinishedOutput: making one takes longer than all else on the path of an answer
Entry = tuple[StageKey, Tokens | Sequence[int], bytes, float, str | bytes]


class OutputQueue:
    """Finished outputs within a number of bytes: the oldest are dropped. Thread-safe.

    A writer is on the path of an answer. It appends to a deque without the lock. After every sixteenth
    output, or a long one, it takes the lock to count the bytes of the new ones.
    """

    __slots__ = (
        "_count_at",
        "_dropped",
        "_finished",
        "_is_awaited",
        "_lock",
        "_most_bytes",
        "_num_bytes",
        "_num_counted",
        "_num_dropped",
        "_woken",
    )

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._lock = threading.Lock()  # guards what follows but the deque
        self._woken = threading.Event()  # set only for a thread that waits: that takes longer than all else
        self._is_awaited = False
        self._finished: deque[Entry] = deque()
        self._num_counted = 0  # the oldest ones
        self._num_bytes = 0  # of these
        self._count_at = _UNCOUNTED  # outputs
        self._num_dropped = 0
        self._dropped: set[DroppedName] = set()

    def put(self, finished: Entry) -> None:
        """Add an output: the members of a :class:`FinishedOutput`, as any tuple."""
        self._finished.append(finished)
        if len(self._finished) >= self._count_at or len(finished[1]) > _LONG_TOKENS:
            self._count()
        if self._is_awaited:
            self._woken.set()

    def take(self) -> list[FinishedOutput]:
        """Remove and return all outputs."""
        with self._lock:
            taken = [self._finished.popleft() for _ in range(len(self._finished))]
            self._num_counted = self._num_bytes = 0
            self._count_at = _UNCOUNTED
        return [FinishedOutput(*entry) for entry in taken]

    def withdraw(self, is_covered: Callable[[StageKey, bytes], bool]) -> list[Output]:
        """Remove and return what an erasure covers, by stage and subject."""
        kept: list[Entry] = []
        withdrawn: list[Output] = []
        for finished in self.take():
            if is_covered(finished.stage, finished.subject):
                withdrawn.append(finished.output)
            else:
                kept.append(finished)
        with self._lock:  # writers may have counted new outputs meanwhile
            self._finished.extendleft(reversed(kept))
            self._num_counted = self._num_bytes = 0
        self._count()
        self.wake()
        return withdrawn

    def take_dropped(self) -> set[DroppedName]:
        """Return the stages and subjects of which outputs were dropped since the last call."""
        with self._lock:
            dropped, self._dropped = self._dropped, set()
        return dropped

    def wait(self, timeout_s: float) -> None:
        """Return once there is an output, or after the time-out. For one thread."""
        self._is_awaited = True  # before the look: a writer appends first (else the time-out ends the wait)
        if not self._finished:
            self._woken.wait(timeout_s)
        self._is_awaited = False
        self._woken.clear()

    def wake(self) -> None:
        """End a wait, or the next one."""
        self._woken.set()

    @property
    def num_dropped(self) -> int:
        """Count the outputs dropped for want of room."""
        return self._num_dropped

    def _count(self) -> None:
        """Count the bytes of new outputs, and drop the oldest ones if there is no room."""
        with self._lock:
            waiting = len(self._finished)
            for number in range(self._num_counted, waiting):
                self._num_bytes += FinishedOutput(*self._finished[number]).num_bytes
            while self._num_bytes > self._most_bytes:
                waiting -= 1
                oldest = FinishedOutput(*self._finished.popleft())
                self._num_bytes -= oldest.num_bytes
                self._num_dropped += 1
                self._dropped.add((oldest.stage, oldest.subject))
            self._num_counted = waiting
            self._count_at = waiting + _UNCOUNTED


class Outbox:
    """Outputs in their order, cut into numbered batches. Not thread-safe.

    The first output after a quiet time is due immediately, further ones ``window_s`` after the last batch. A
    batch keeps its numbers until it is published, so that a repetition is recognized. Nothing is due before
    the tenant's epoch is known.

    Attributes:
        window_s: may be changed at any time.
        next_number: sequence number of the next record.
        epoch: of the tenant; None if it is not known yet.
        unsent: the batch that was cut last and is not published yet.
        is_refused: the last batch could not be encoded.
    """

    def __init__(self, window_s: float, batch_bytes: int) -> None:
        self.window_s = window_s
        self._batch_bytes = batch_bytes
        self._outputs: deque[Output] = deque()
        self._num_bytes = 0
        self._sent_s = -math.inf
        self.next_number = 0
        self.epoch: int | None = None
        self.unsent: Batch | None = None
        self.is_refused = False

    def add(self, output: Output) -> None:
        """Add an output to be published."""
        self._outputs.append(output)
        self._num_bytes += _size(output)

    @property
    def num_bytes(self) -> int:
        """Bytes of the outputs that wait."""
        return self._num_bytes

    def drop_oldest(self) -> None:
        """Remove the output that has waited for longest."""
        self._num_bytes -= _size(self._outputs.popleft())

    @property
    def due_s(self) -> float:
        """When the next batch is due, in the clock's seconds; infinite if there is none, or no epoch yet."""
        if self.epoch is None:
            return math.inf
        if self.unsent is not None or self._num_bytes >= self._batch_bytes:
            return -math.inf
        return self._sent_s + self.window_s if self._outputs else math.inf

    def was_sent_since(self, time_s: float) -> bool:
        """Return True if a batch was sent after a time of the clock."""
        return self._sent_s > time_s

    def cut(self, origin: bytes) -> Batch | None:
        """Return the next batch, the unsent one first, or None. It is the unsent one until :meth:`sent`."""
        if self.unsent is None and self.epoch is not None and self._outputs:
            self.unsent = self.number(origin, self._take())
        return self.unsent

    def number(self, origin: bytes, records: tuple[Record, ...]) -> Batch:
        """Return records as a batch with the next sequence numbers."""
        batch = Batch(origin, self.next_number, records)
        self.next_number += len(records)
        return batch

    def sent(self, now_s: float) -> None:
        """Forget the unsent batch: it was published, or can't be."""
        self._sent_s = now_s
        self.unsent = None

    def withdraw(self, tombstone: Tombstone) -> None:
        """Remove what an erasure covers."""
        self._outputs = deque(one for one in self._outputs if not is_covered(one, tombstone))
        self._num_bytes = sum(map(_size, self._outputs))
        if self.unsent is not None:
            self.unsent = self.unsent.without(tombstone)

    def clear(self) -> None:
        """Forget all outputs. The numbers go on."""
        self._outputs.clear()
        self._num_bytes = 0
        self.unsent = None

    def _take(self) -> tuple[Record, ...]:
        """Remove and return the first outputs: as many as fit one batch, at least one."""
        taken: list[Record] = []
        num_bytes = 0
        while self._outputs and num_bytes < self._batch_bytes and len(taken) < MOST_RECORDS:
            taken.append(self._outputs.popleft())
            num_bytes += _size(taken[-1])
        self._num_bytes -= num_bytes
        return tuple(taken)


def _size(output: Record) -> int:
    return _RECORD_BYTES + num_token_bytes(output)
