"""All that a store holds of a scope, batch by batch, each with its place: for commands that read it all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from agentspec.corpus.batch import Batch, decode
from agentspec.corpus.store import START, CorpusStore, Cursor, Scope, Unread
from agentspec.errors import BatchError

if TYPE_CHECKING:
    from agentspec.corpus.encryption import DataKey

_READ_BYTES = 1 << 20


class StoredBatch(NamedTuple):
    """An encoded batch in a store.

    Attributes:
        place: names it, like ``log entry 12``.
        num_bytes: its size in the store.
        batch: None if it can't be used.
        damage: the reason; empty if it can be used.
        is_merged: the snapshot was written from it, too.
    """

    place: str
    num_bytes: int
    batch: Batch | None
    damage: str
    is_merged: bool


class ScopeContents:
    """Reads the snapshot and the log of a scope. Each iteration may raise CorpusError.

    Args:
        store: read only.
        scope: the one to read.
        key: of the scope; None if its batches are not encrypted.
        advance: called with the size of each batch that was read.
    """

    def __init__(
        self,
        store: CorpusStore,
        scope: Scope,
        key: DataKey | None = None,
        advance: Callable[[int], object] = lambda num_bytes: None,
    ) -> None:
        self.store = store
        self.scope = scope
        self._key = key
        self._advance = advance

    def __iter__(self) -> Iterator[StoredBatch]:
        """Yield the parts of the snapshot, then the entries of the log."""
        yield from self.snapshot()
        yield from self.log()

    def snapshot(self) -> Iterator[StoredBatch]:
        """Yield the parts of the snapshot, if there is one."""
        snapshot = self.store.snapshot(self.scope)
        for number, part in enumerate(snapshot.parts if snapshot else ()):
            yield self._stored(f"snapshot part {number}", part, is_merged=True)

    def log(self) -> Iterator[StoredBatch]:
        """Yield the entries of the log, the oldest first, up to its present end."""
        end = self.store.end(self.scope)
        is_merged, first_unmerged = self._merged()
        cursor: Cursor | None = START
        while cursor is not None:
            entries = self.store.read(self.scope, cursor, _READ_BYTES)
            cursor = None
            for entry in entries:
                is_merged = is_merged and entry.cursor != first_unmerged
                yield self._stored(f"log entry {entry.cursor}", entry.batch, is_merged=is_merged)
                if entry.cursor == end:
                    return
                cursor = entry.cursor

    def _merged(self) -> tuple[bool, Cursor | None]:
        """Return if there is a snapshot, and the first entry that is not in it."""
        snapshot = self.store.snapshot(self.scope)
        if snapshot is None:
            return False, None
        later = self.store.read(self.scope, snapshot.cursor, 1)
        return True, later[0].cursor if later else None

    def _stored(self, place: str, data: bytes | Unread, *, is_merged: bool) -> StoredBatch:
        self._advance(len(data))
        try:
            batch = decode(data, self.scope.tenant, self._key)
        except BatchError as error:
            return StoredBatch(place, len(data), None, str(error), is_merged)
        return StoredBatch(place, len(data), batch, "", is_merged)
