"""The outbox: one tenant's records that wait to be published."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator

import msgspec

from agentspec.corpus.batch import MOST_RECORDS, Batch, Count, ModelUpdate, Part, Record, num_content_bytes
from agentspec.corpus.erasure import PLACEHOLDER, Erasure
from agentspec.corpus.output import Output
from agentspec.forest.file import MOST_USES

_RECORD_BYTES = 64  # without the tokens
_MOST_COUNTS = 4096  # beyond it they are due now


class Outbox:
    """Records in their order, cut into numbered batches. Not thread-safe.

    The first record after a quiet time is due immediately, further ones ``window_s`` after the last batch. A
    batch keeps its numbers until it is published, so that a repetition is recognized. Counts are summed for
    ``counts_every_s``. Updates of models are due immediately, in batches of their own: engines of an earlier
    version can't read these. Nothing is due before the tenant's epoch is known.

    Attributes:
        window_s: may be changed at any time.
    """

    def __init__(self, window_s: float, batch_bytes: int, counts_every_s: float) -> None:
        self.window_s = window_s
        self._batch_bytes = batch_bytes
        self._counts_every_s = counts_every_s
        self._records: deque[Record] = deque()
        self._updates: deque[Record] = deque()
        self._num_bytes = 0
        self._counts: dict[bytes, Count] = {}
        self._counts_due_s = math.inf
        self._sent_s = -math.inf
        self.next_number = 0
        self.epoch: int | None = None
        self.unsent: Batch | None = None
        self.is_refused = False  # the last batch could not be encoded

    def add(self, record: Output | Part | Count) -> None:
        """Add an output to be published whole, a part of one that is being written, or a placeholder."""
        self._records.append(record)
        self._num_bytes += _size(record)

    def add_update(self, update: ModelUpdate) -> None:
        """Add what a model has learned."""
        self._updates.append(update)

    @property
    def wants_updates(self) -> bool:
        """True if an update would be sent now."""
        return self.epoch is not None and not self._updates and not self.is_refused

    @property
    def num_bytes(self) -> int:
        """Bytes of the records that wait, without updates."""
        return self._num_bytes

    def drop_oldest(self) -> Record:
        """Remove the record that has waited for longest."""
        record = self._records.popleft()
        self._num_bytes -= _size(record)
        return record

    def count(self, output: Output, now_s: float, *, was_followed: bool = False) -> None:
        """Add an output's uses to be published as a count: with the next batch if others have followed it."""
        before = self._counts.get(output.digest)
        uses = output.uses + (before.uses if before else 0)
        if not self._counts:
            self._counts_due_s = now_s + self._counts_every_s
        self._counts[output.digest] = Count(output.digest, output.stage.path, min(uses, MOST_USES))
        if len(self._counts) >= _MOST_COUNTS:
            self._counts_due_s = now_s
        elif was_followed:
            self._counts_due_s = min(self._counts_due_s, max(now_s, self._sent_s + self.window_s))

    def was_shown(self, number: int) -> bool:
        """Return True if others may have seen the first part of an output: it does not wait here."""
        return not any(
            isinstance(record, Part) and record.number == number and record.is_first
            for record in self._records
        )

    @property
    def due_s(self) -> float:
        """When the next batch is due, in the clock's seconds; infinite if there is none, or no epoch yet."""
        if self.epoch is None:
            return math.inf
        if self.unsent is not None or self._updates or self._num_bytes >= self._batch_bytes:
            return -math.inf
        return min(self._sent_s + self.window_s if self._records else math.inf, self._counts_due_s)

    def was_sent_since(self, time_s: float) -> bool:
        """Return True if a batch was sent after a time of the clock."""
        return self._sent_s > time_s

    def cut(self, origin: bytes, now_s: float, *, is_last: bool = False) -> Batch | None:
        """Return the next batch, the unsent one first, or None. It is the unsent one until :meth:`sent`."""
        if self.unsent is None and self.epoch is not None:
            records = tuple(self._first_of(self._updates))
            if not records and self._counts and (is_last or now_s >= self._counts_due_s):
                self._take_counts()
            while not records and self._records:  # all of these may be left out
                records = self._take_records()
            if records:
                self.unsent = self.number(origin, records)
        return self.unsent

    def number(self, origin: bytes, records: tuple[Record, ...]) -> Batch:
        """Return records as a batch with the next sequence numbers."""
        batch = Batch(origin, self.next_number, records)
        self.next_number += len(records)
        return batch

    def sent(self, now_s: float) -> None:
        """Forget the unsent batch: it was published, or can't be. Updates do not begin the window again."""
        if self.unsent is None or not isinstance(self.unsent.records[0], ModelUpdate):
            self._sent_s = now_s
        self.unsent = None

    def withdraw(self, erasure: Erasure) -> list[Output]:
        """Remove what an erasure covers, and return the outputs among it."""
        kept = deque(record for record in self._records if not erasure.covers(record))
        withdrawn = [
            record for record in self._records if isinstance(record, Output) and erasure.covers(record)
        ]
        self._records = kept
        self._num_bytes = sum(map(_size, kept))
        self._updates = deque(one for one in self._updates if not erasure.covers(one))
        self._counts = {key: count for key, count in self._counts.items() if not erasure.covers(count)}
        if self.unsent is not None:
            self.unsent = erased(self.unsent, erasure) or self.unsent
        return withdrawn

    def clear(self) -> None:
        """Forget all records. The numbers go on."""
        self._records.clear()
        self._updates.clear()
        self._num_bytes = 0
        self._counts.clear()
        self._counts_due_s = math.inf
        self.unsent = None

    def _take_counts(self) -> None:
        for count in self._counts.values():
            self._records.append(count)
            self._num_bytes += _RECORD_BYTES
        self._counts.clear()
        self._counts_due_s = math.inf

    def _take_records(self) -> tuple[Record, ...]:
        taken = self._first_of(self._records)
        self._num_bytes -= sum(map(_size, taken))
        return tuple(_joined(taken))

    def _first_of(self, queue: deque[Record]) -> list[Record]:
        """Remove and return the first records: as many as fit one batch, at least one if there is any."""
        taken: list[Record] = []
        num_bytes = 0
        while queue and num_bytes < self._batch_bytes and len(taken) < MOST_RECORDS:
            taken.append(queue.popleft())
            num_bytes += _size(taken[-1])
        return taken


def _joined(records: Iterable[Record]) -> Iterator[Record]:
    """Return the records with consecutive parts of an output as one. One that its end follows is left out.

    The end stays if parts before that may have been sent.
    """
    found: list[Record | None] = []
    places: dict[int, int] = {}  # of the last part, by the output's number
    for record in records:
        if not isinstance(record, Part):
            found.append(record)
            continue
        place = places.pop(record.number, None)
        if place is not None and isinstance(before := found[place], Part):
            if record.tokens and record.begin == before.end:
                found[place] = msgspec.structs.replace(before, tokens=before.tokens + record.tokens)
                places[record.number] = place
                continue
            if not record.tokens:
                found[place] = None
                if before.is_first:
                    continue
        if record.tokens:
            places[record.number] = len(found)
        found.append(record)
    return (record for record in found if record is not None)


def erased(batch: Batch, erasure: Erasure) -> Batch | None:
    """Return the batch with placeholders for all that is covered, or None if nothing is."""
    records = tuple(PLACEHOLDER if erasure.covers(record) else record for record in batch.records)
    if records == batch.records:
        return None
    return Batch(batch.origin, batch.first, records)


def _size(record: Record) -> int:
    return _RECORD_BYTES + num_content_bytes(record)
