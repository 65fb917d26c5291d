"""Outputs that wait to be published: one queue that decode steps fill, and then one outbox per tenant."""

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
_UNCOUNTED = 16  # the queue counts bytes after this many new outputs
_LONG_TOKENS = 4096  # the queue counts a longer output immediately
_ENTRY_BYTES = 400  # bytes of an output without tokens and session
_INTEGER_BYTES = 36  # bytes of a token in a list
_RECORD_BYTES = 64  # bytes of a record in a batch, without the tokens


class FinishedOutput(NamedTuple):
    """An output as the engine puts it into the queue: not converted or checked, since that takes time.

    Attributes:
        token_ids: int32 ``[n]``, or a sequence of integers.
        subject: hash of the person that the output is about; empty if there is none.
        ended_s: end of the output, in seconds since 1970.
        session: the name or the hash of the output's session; an empty hash without a session.
    """

    stage: StageKey
    token_ids: Tokens | Sequence[int]
    subject: bytes
    ended_s: float
    session: str | bytes = b""

    @property
    def output(self) -> Output:
        """The output, converted and checked. Raises the errors of :class:`Output`."""
        token_ids = self.token_ids
        tokens = token_ids if isinstance(token_ids, np.ndarray) else np.array(token_ids, np.int32)
        minute = int(self.ended_s) // _MINUTE_S
        session = self.session
        if isinstance(session, str):
            session = session_hash(self.stage.tenant, session)
        return Output(self.stage, tokens, self.subject, minute=minute, session=session)

    @property
    def num_bytes(self) -> int:
        """Estimated size in bytes."""
        other = _ENTRY_BYTES + sys.getsizeof(self.session)
        if isinstance(self.token_ids, np.ndarray):
            return self.token_ids.nbytes + other
        return _INTEGER_BYTES * len(self.token_ids) + other


DroppedName = tuple[StageKey, bytes]  # the bytes are the subject
# the fields of a FinishedOutput as a plain tuple: the constructor takes longer than the rest of put()
Entry = tuple[StageKey, Tokens | Sequence[int], bytes, float, str | bytes]


class OutputQueue:
    """Finished outputs, limited in bytes: the oldest are dropped. Thread-safe.

    Decode steps write to the queue, so a writer only appends to a deque, without the lock. After every
    sixteenth output, or a long one, the writer takes the lock and counts the bytes of the new outputs.
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
        self._lock = threading.Lock()  # guards the fields below except the deque
        self._woken = threading.Event()  # set only while a thread waits, since setting an event is slow
        self._is_awaited = False
        self._finished: deque[Entry] = deque()
        self._num_counted = 0  # number of outputs, from the oldest, with counted bytes
        self._num_bytes = 0  # bytes of the counted outputs
        self._count_at = _UNCOUNTED  # number of outputs at which the next writer counts
        self._num_dropped = 0
        self._dropped: set[DroppedName] = set()

    def put(self, finished: Entry) -> None:
        """Add an output: the fields of a :class:`FinishedOutput`, as any tuple."""
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
        """Remove and return the outputs that an erasure covers, judged by stage and subject."""
        kept: list[Entry] = []
        withdrawn: list[Output] = []
        for finished in self.take():
            if is_covered(finished.stage, finished.subject):
                withdrawn.append(finished.output)
            else:
                kept.append(finished)
        with self._lock:  # writers may have counted outputs since the copy
            self._finished.extendleft(reversed(kept))
            self._num_counted = self._num_bytes = 0
        self._count()
        self.wake()
        return withdrawn

    def take_dropped(self) -> set[DroppedName]:
        """Return stages and subjects of outputs that were dropped since the last call."""
        with self._lock:
            dropped, self._dropped = self._dropped, set()
        return dropped

    def wait(self, timeout_s: float) -> None:
        """Return once the queue holds an output, or after the time-out. Only one thread may wait."""
        self._is_awaited = True  # before the check: a writer appends first, then reads this
        if not self._finished:
            self._woken.wait(timeout_s)
        self._is_awaited = False
        self._woken.clear()

    def wake(self) -> None:
        """End the current wait, or the next one."""
        self._woken.set()

    @property
    def num_dropped(self) -> int:
        """Number of outputs dropped because the queue was full."""
        return self._num_dropped

    def _count(self) -> None:
        """Count the bytes of new outputs, and drop the oldest outputs beyond the limit."""
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
    """Outputs of one tenant in their order, cut into numbered batches. Not thread-safe.

    The first output after a pause is due immediately, further ones ``window_s`` after the last batch. A batch
    keeps its sequence numbers until it is published, so that readers recognize a batch that was sent twice.
    Nothing is due before the tenant's epoch is known.

    Attributes:
        window_s: seconds between two batches; may be changed at any time.
        next_number: sequence number of the next record.
        epoch: epoch of the tenant; None if it is not known yet.
        unsent: the batch that was cut last, until it is published.
        is_refused: True if the last batch could not be encoded.
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
        """Bytes of the waiting outputs."""
        return self._num_bytes

    def drop_oldest(self) -> None:
        """Remove the output that has waited longest."""
        self._num_bytes -= _size(self._outputs.popleft())

    @property
    def due_s(self) -> float:
        """Time of the clock at which the next batch is due; infinite without outputs or without an epoch."""
        if self.epoch is None:
            return math.inf
        if self.unsent is not None or self._num_bytes >= self._batch_bytes:
            return -math.inf
        return self._sent_s + self.window_s if self._outputs else math.inf

    def was_sent_since(self, time_s: float) -> bool:
        """Return True if a batch was sent after this time of the clock."""
        return self._sent_s > time_s

    def cut(self, origin: bytes) -> Batch | None:
        """Return the unsent batch, or cut a new one, which is unsent until :meth:`sent`; or None."""
        if self.unsent is None and self.epoch is not None and self._outputs:
            self.unsent = self.number(origin, self._take())
        return self.unsent

    def number(self, origin: bytes, records: tuple[Record, ...]) -> Batch:
        """Return a batch of these records with the next sequence numbers."""
        batch = Batch(origin, self.next_number, records)
        self.next_number += len(records)
        return batch

    def sent(self, now_s: float) -> None:
        """Drop the unsent batch, because it was published or can't be published."""
        self._sent_s = now_s
        self.unsent = None

    def withdraw(self, tombstone: Tombstone) -> None:
        """Remove the outputs that a tombstone covers."""
        self._outputs = deque(one for one in self._outputs if not is_covered(one, tombstone))
        self._num_bytes = sum(map(_size, self._outputs))
        if self.unsent is not None:
            self.unsent = self.unsent.without(tombstone)

    def clear(self) -> None:
        """Remove all outputs. Sequence numbers continue."""
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
