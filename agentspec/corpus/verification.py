"""A check of all batches of a scope. It changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from agentspec.corpus.contents import ScopeContents, StoredBatch
from agentspec.corpus.seen import SeenNumbers
from agentspec.corpus.store import Cursor
from agentspec.errors import CorpusError


@dataclass(slots=True)
class Verification:
    """The result of a check.

    Attributes:
        num_batches: parts of the snapshot and entries of the log.
        num_records: in those that can be used.
        num_missing: sequence numbers of engines that the log lacks. An engine that ended without a last
            batch, or an erasure, leaves some: they are no damage.
        damage: one line for each place.
    """

    num_batches: int = 0
    num_records: int = 0
    num_missing: int = 0
    damage: list[str] = field(default_factory=list)


def verify(contents: ScopeContents) -> Verification:
    """Read the snapshot and the log of a scope. Raises CorpusError if the store is away."""
    found = _snapshot(contents)
    seen: dict[bytes, SeenNumbers] = {}
    for stored in _log(contents, found):
        _note(found, stored)
        if batch := stored.batch:
            seen.setdefault(batch.origin, SeenNumbers()).add(batch.first, len(batch.records))
    found.num_missing = sum(numbers.num_missing for numbers in seen.values())
    return found


def _note(found: Verification, stored: StoredBatch) -> None:
    found.num_batches += 1
    if stored.batch is None:
        found.damage.append(f"{stored.place}: {stored.damage}")
    else:
        found.num_records += len(stored.batch.records)


def _snapshot(contents: ScopeContents) -> Verification:
    """Read the parts of the snapshot. Begins anew if engines replace it meanwhile."""
    while True:
        before, found = _cursor(contents), Verification()
        try:
            for part in contents.snapshot():
                _note(found, part)
        except CorpusError as error:
            if _cursor(contents) != before:
                continue
            found.damage.append(f"snapshot part {found.num_batches}: {error}")
        return found


def _log(contents: ScopeContents, found: Verification) -> Iterator[StoredBatch]:
    """Yield the entries of the log up to the first that can't be read."""
    place = "start of the log"
    try:
        for entry in contents.log():
            yield entry
            place = f"behind {entry.place}"
    except CorpusError as error:
        contents.store.epoch(contents.scope)  # raises if the store is away altogether
        found.damage.append(f"{place}: {error}")


def _cursor(contents: ScopeContents) -> Cursor | None:
    snapshot = contents.store.snapshot(contents.scope)
    return snapshot.cursor if snapshot else None
