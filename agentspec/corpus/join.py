"""Joining: what an engine reads before it follows a log."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from agentspec.corpus.batch import Batch, ForgetStage, ForgetSubject
from agentspec.corpus.batch_log import BatchLog
from agentspec.corpus.erasure import Tombstone
from agentspec.corpus.output import Output
from agentspec.corpus.store import START, Cursor
from agentspec.errors import CorpusError

RecordId = tuple[bytes, int]  # origin, sequence number
Tombstones = dict[RecordId, Tombstone]


class Joining(NamedTuple):
    """What to do before following a log.

    Attributes:
        cursor: follow the log from here.
        tombstones: those that stand before the cursor.
        outputs: to learn, the most useful first.
    """

    cursor: Cursor
    tombstones: Tombstones
    outputs: Iterator[Output]


@dataclass(slots=True)
class Losses:
    """What could not be used.

    Attributes:
        num_damaged: batches.
        num_failures: snapshots, or the rest of one, that the store did not return.
    """

    num_damaged: int = 0
    num_failures: int = 0


def join(log: BatchLog, tenant: str, most_bytes: int, losses: Losses) -> Joining:
    """Begin to read a tenant's snapshot.

    A part that can't be read ends the outputs: the rest costs speed, not correctness.

    Args:
        log: holds the snapshot.
        tenant: owner of the log.
        most_bytes: of tokens.
        losses: counts what is passed over.

    Raises:
        SnapshotError: the log may be read, but not the snapshot.
        CorpusError: the store can't be read.
    """
    snapshot = log.snapshot(tenant)
    if snapshot is None:
        return Joining(START, {}, iter(()))
    found, rest = _tombstones(_usable(snapshot.batches, losses))
    return Joining(snapshot.cursor, found, _outputs(rest, most_bytes, losses))


def _usable(batches: Iterator[Batch | None], losses: Losses) -> Iterator[Batch]:
    for batch in batches:
        if batch is None:
            losses.num_damaged += 1
        else:
            yield batch


def _tombstones(batches: Iterator[Batch]) -> tuple[Tombstones, Iterator[Batch]]:
    """Return the tombstones that a snapshot begins with, and its other batches."""
    found: Tombstones = {}
    for batch in batches:
        records = dict(enumerate(batch.records, batch.first))
        if any(isinstance(record, Output) for record in records.values()):
            return found, chain([batch], batches)
        for number, record in records.items():
            if isinstance(record, ForgetStage | ForgetSubject):
                found[batch.origin, number] = record
    return found, iter(())


def _outputs(batches: Iterator[Batch], most_bytes: int, losses: Losses) -> Iterator[Output]:
    num_bytes = 0
    try:
        for batch in batches:
            for record in batch.records:
                if isinstance(record, Output):
                    num_bytes += record.tokens.nbytes
                    if num_bytes > most_bytes:
                        return
                    yield record
    except CorpusError:  # e.g. replaced while it was read
        losses.num_failures += 1
