"""An inventory: which outputs a scope has, without their tokens."""

from __future__ import annotations

from collections import Counter as Sums
from collections.abc import Iterator
from dataclasses import dataclass

from msgspec.structs import replace

from agentspec.corpus.batch import (
    PASSING,
    Batch,
    Count,
    ForgetStage,
    ForgetSubject,
    Record,
    num_content_bytes,
)
from agentspec.corpus.contents import ScopeContents, StoredBatch
from agentspec.corpus.erasure import PLACEHOLDER, Tombstone
from agentspec.corpus.output import Output
from agentspec.corpus.seen import SeenNumbers
from agentspec.forest.file import MOST_USES

Path = tuple[str, ...]  # of a stage
_RECORD_BYTES = 64  # without the tokens


@dataclass(slots=True)
class HeldOutput:
    """An output of the snapshot or the log: equal ones of the same subject are one.

    Attributes:
        path: of its stage.
        subject: hash of the person that its data may be of; empty if it has none.
        num_tokens: its length.
        uses: how often it occurred.
        minute: when it last ended, in minutes since 1970.
        is_in_snapshot: False if only the log has it.
    """

    path: Path
    subject: bytes
    num_tokens: int
    uses: int
    minute: int
    is_in_snapshot: bool


class Inventory:
    """The distinct outputs of a scope, and figures of its batches. Takes some 300 bytes per output.

    Attributes:
        origins: engine processes with batches in the log.
        num_tombstones: erasures that snapshot and log still name.
        num_unreadable: batches that can't be used.
        bytes_by_path: size in the store by stage: a batch's size is shared among its records.
    """

    def __init__(self) -> None:
        self.origins: set[bytes] = set()
        self.num_unreadable = 0
        self.bytes_by_path: Sums[Path] = Sums()
        self._held: dict[bytes, dict[bytes, HeldOutput]] = {}  # by digest, then by subject
        self._seen: dict[bytes, SeenNumbers] = {}
        self._tombstones: set[tuple[bytes, int]] = set()

    @classmethod
    def of(cls, contents: ScopeContents) -> Inventory:
        """Return the inventory of a scope. Raises CorpusError if the store can't be read."""
        inventory = cls()
        for stored in contents.snapshot():
            inventory.add(stored, is_snapshot=True)
        for stored in contents.log():
            inventory.add(stored, is_snapshot=False)
        return inventory

    @property
    def num_tombstones(self) -> int:
        """Count the erasures that snapshot and log still name."""
        return len(self._tombstones)

    def __iter__(self) -> Iterator[HeldOutput]:
        return (held for equal in self._held.values() for held in equal.values())

    def add(self, stored: StoredBatch, *, is_snapshot: bool) -> None:
        """Apply the records of a batch that were not applied before."""
        batch = stored.batch
        if batch is None:
            self.num_unreadable += 1
            return
        if not is_snapshot:
            self.origins.add(batch.origin)
        self._share(stored.num_bytes, batch)
        for number in self._new_numbers(batch, is_snapshot):
            record = batch.records[number - batch.first]
            if isinstance(record, Output):
                self._add(record, is_snapshot=is_snapshot, is_merged=stored.is_merged)
            elif isinstance(record, Count):
                self._count(record, is_merged=stored.is_merged)
            elif not isinstance(record, PASSING):
                self._tombstones.add((batch.origin, number))
                if not is_snapshot:
                    self.forget(record)

    def take(self, output: Output) -> Output | None:
        """Remove an output. Return it with all its uses and no session, or None if it is not here."""
        held = self._held.get(output.digest, {}).pop(output.subject, None)
        return None if held is None else replace(output, uses=held.uses, minute=held.minute, session=b"")

    def covered(self, tombstone: Tombstone) -> list[HeldOutput]:
        """Return the outputs that a tombstone names."""
        return [held for held in self if _is_covered(held, tombstone)]

    def forget(self, tombstone: Tombstone) -> None:
        """Remove the outputs that a tombstone names."""
        for digest, equal in list(self._held.items()):
            rest = {subject: held for subject, held in equal.items() if not _is_covered(held, tombstone)}
            if rest:
                self._held[digest] = rest
            else:
                del self._held[digest]

    def _new_numbers(self, batch: Batch, is_snapshot: bool) -> Iterator[int]:
        if is_snapshot:  # its records have no numbers
            return iter(range(batch.first, batch.first + len(batch.records)))
        new = self._seen.setdefault(batch.origin, SeenNumbers()).add(batch.first, len(batch.records))
        return (number for numbers in new for number in numbers)

    def _add(self, output: Output, *, is_snapshot: bool, is_merged: bool) -> None:
        equal = self._held.setdefault(output.digest, {})
        held = equal.get(output.subject)
        if held is None:
            equal[output.subject] = HeldOutput(
                output.stage.path,
                output.subject,
                len(output.tokens),
                output.uses,
                output.minute,
                is_snapshot,
            )
        elif is_snapshot or not (is_merged and held.is_in_snapshot):  # else its uses are counted already
            held.uses = min(held.uses + output.uses, MOST_USES)
            held.minute = max(held.minute, output.minute)

    def _count(self, count: Count, *, is_merged: bool) -> None:
        held = next(iter(self._held.get(count.digest, {}).values()), None)
        if held is not None and not (is_merged and held.is_in_snapshot):
            held.uses = min(held.uses + count.uses, MOST_USES)

    def _share(self, num_bytes: int, batch: Batch) -> None:
        """Add a batch's size to its stages."""
        sizes = [_size(record) for record in batch.records]
        total = sum(sizes)
        for record, size in zip(batch.records, sizes, strict=True):
            path = _path(record)
            if path is not None:
                self.bytes_by_path[path] += round(num_bytes * size / total)


def is_below(path: Path, stage: Path) -> bool:
    """Return True for the stage itself and all stages below it."""
    return path[: len(stage)] == stage


def _is_covered(held: HeldOutput, tombstone: Tombstone) -> bool:
    if isinstance(tombstone, ForgetSubject):
        return held.subject == tombstone.subject
    return is_below(held.path, tombstone.path)


def _path(record: Record) -> Path | None:
    if isinstance(record, Output):
        return record.stage.path
    return None if isinstance(record, ForgetStage | ForgetSubject) or record == PLACEHOLDER else record.path


def _size(record: Record) -> int:
    return _RECORD_BYTES + num_content_bytes(record)
