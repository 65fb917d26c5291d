"""Joining: what an engine reads before it follows a log."""

from __future__ import annotations

from collections.abc import Iterator
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


def join(log: BatchLog, tenant: str, most_bytes: int) -> Joining:
    """Begin to read a tenant's snapshot.

    A part that can't be read ends the outputs: the rest costs speed, not correctness.

    Args:
        log: holds the snapshot.
        tenant: owner of the log.
        most_bytes: of tokens.

    Raises:
        CorpusError: the store can't be read.
    """
    snapshot = log.snapshot(tenant)
    if snapshot is None:
        return Joining(START, {}, iter(()))
    found, rest = _tombstones(snapshot.batches)
    return Joining(snapshot.cursor, found, _outputs(rest, most_bytes))


def _tombstones(batches: Iterator[Batch | None]) -> tuple[Tombstones, Iterator[Batch | None]]:
    """Return the tombstones that a snapshot begins with, and its other batches."""
    found: Tombstones = {}
    for batch in batches:
        records = {} if batch is None else dict(enumerate(batch.records, batch.first))
        if any(isinstance(record, Output) for record in records.values()):
            return found, chain([batch], batches)
        for number, record in records.items():
            if batch is not None and isinstance(record, ForgetStage | ForgetSubject):
                found[batch.origin, number] = record
    return found, iter(())


def _outputs(batches: Iterator[Batch | None], most_bytes: int) -> Iterator[Output]:
    num_bytes = 0
    try:
        for batch in batches:
            for record in batch.records if batch else ():
                if isinstance(record, Output):
                    num_bytes += record.tokens.nbytes
                    if num_bytes > most_bytes:
                        return
                    yield record
    except CorpusError:  # e.g. replaced while it was read
        return
