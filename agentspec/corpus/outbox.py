"""The outbox: one tenant's records that wait to be published."""

from __future__ import annotations

import math
from collections import deque

from agentspec.corpus.batch import MOST_RECORDS, Batch, Output, Record, Tombstone, is_covered, num_token_bytes

_RECORD_BYTES = 64  # without the tokens


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
