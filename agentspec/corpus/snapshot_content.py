"""The content of a snapshot: a tenant's outputs, equal ones merged, and its erasures."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from agentspec.corpus.batch import ORIGIN_BYTES, PASSING, Batch, Count, ForgetStage, ForgetSubject, split
from agentspec.corpus.erasure import Erasure
from agentspec.corpus.output import Output
from agentspec.corpus.seen import SeenNumbers
from agentspec.forest.file import MOST_USES

_MOST_TOMBSTONES = 256
_MINUTES_PER_DAY = 1440
_SESSION_MINUTES = 15  # sessions without a request for longer are forgotten by the trees, too
_ORIGIN = bytes(ORIGIN_BYTES)  # a snapshot's records have no numbers


class SnapshotContent:
    """Merges batches in the order of the log. Holds about twice ``most_bytes`` of tokens at most.

    Args:
        most_bytes: of tokens in the snapshot.
        now_minute: minutes since 1970.
        most_age_minutes: older outputs are left out.
    """

    def __init__(self, most_bytes: int, now_minute: int, most_age_minutes: int) -> None:
        self._most_bytes = most_bytes
        self._now_minute = now_minute
        self._oldest_minute = now_minute - most_age_minutes
        self._outputs: dict[bytes, dict[bytes, Output]] = {}  # by digest, then by subject
        self._num_bytes = 0
        self._seen: dict[bytes, SeenNumbers] = {}
        self._tombstones: OrderedDict[tuple[bytes, int], Batch] = OrderedDict()

    def add(self, batch: Batch, *, is_snapshot: bool = False) -> None:
        """Apply the records of a batch that were not applied before."""
        if is_snapshot:
            numbers = [range(batch.first, batch.first + len(batch.records))]
        else:
            numbers = self._seen.setdefault(batch.origin, SeenNumbers()).add(batch.first, len(batch.records))
        for number in (number for fresh in numbers for number in fresh):
            record = batch.records[number - batch.first]
            if isinstance(record, Output):
                self._add(record)
            elif isinstance(record, Count):
                self._count(record)
            elif not isinstance(record, PASSING):
                self._remember(Batch(batch.origin, number, (record,)))
                if not is_snapshot:
                    self.erase(Erasure(record))

    def erase(self, erasure: Erasure) -> None:
        """Remove what an erasure covers."""
        for output in [output for output in self._each() if erasure.covers(output)]:
            self._drop(output)

    def erase_by(self, batch: Batch, digests: Iterable[bytes]) -> Erasure:
        """Apply a tombstone. Return it with the digests of the outputs that it covered, and those given."""
        (tombstone,) = batch.records
        assert isinstance(tombstone, ForgetStage | ForgetSubject)
        erasure = Erasure(tombstone, set(digests))
        self._remember(batch)
        self.erase(erasure)
        return erasure

    def batches(self) -> Iterator[Batch]:
        """Yield the snapshot's batches: one per erasure, then the most used and newest outputs first.

        Outputs of sessions that may go on come last, in their order.
        """
        yield from self._tombstones.values()
        self._trim(self._most_bytes)
        ranked = sorted(self._each(), key=self._worth, reverse=True)
        ended = [self._without_old_session(output) for output in ranked if not self._goes_on(output)]
        going_on = sorted(filter(self._goes_on, self._each()), key=lambda output: output.minute)
        for records in split([*ended, *going_on]):
            yield Batch(_ORIGIN, 0, records)

    def _add(self, output: Output) -> None:
        if output.minute < self._oldest_minute:
            return
        equal = self._outputs.setdefault(output.digest, {})
        before = equal.get(output.subject)
        if before is None:
            equal[output.subject] = output
            self._num_bytes += output.tokens.nbytes
        else:
            uses, minute = min(before.uses + output.uses, MOST_USES), max(before.minute, output.minute)
            equal[output.subject] = replace(output, uses=uses, minute=minute)
        if self._num_bytes > 2 * self._most_bytes:
            self._trim(self._most_bytes)

    def _count(self, count: Count) -> None:
        equal = self._outputs.get(count.digest)
        if equal:
            subject, output = next(iter(equal.items()))
            uses = min(output.uses + count.uses, MOST_USES)
            before = self._without_old_session(output)
            equal[subject] = replace(before, uses=uses, minute=max(before.minute, self._now_minute))

    def _remember(self, batch: Batch) -> None:
        self._tombstones[batch.origin, batch.first] = batch
        while len(self._tombstones) > _MOST_TOMBSTONES:
            self._tombstones.popitem(last=False)

    def _trim(self, most_bytes: int) -> None:
        """Drop the outputs of least worth beyond a number of bytes."""
        if self._num_bytes <= most_bytes:
            return
        for output in sorted(self._each(), key=self._worth):
            if self._num_bytes <= most_bytes:
                return
            self._drop(output)

    def _drop(self, output: Output) -> None:
        equal = self._outputs[output.digest]
        self._num_bytes -= equal.pop(output.subject).tokens.nbytes
        if not equal:
            del self._outputs[output.digest]

    def _each(self) -> Iterator[Output]:
        return (output for equal in self._outputs.values() for output in equal.values())

    def _goes_on(self, output: Output) -> bool:
        """Return True if the output's session may go on."""
        return bool(output.session) and output.minute >= self._now_minute - _SESSION_MINUTES

    def _without_old_session(self, output: Output) -> Output:
        return output if self._goes_on(output) or not output.session else replace(output, session=b"")

    def _worth(self, output: Output) -> float:
        """Rank outputs: a day of age weighs as much as half of the uses."""
        return math.log2(output.uses) - (self._now_minute - output.minute) / _MINUTES_PER_DAY
