"""Snapshots in an object store, beside a log in SQLite or Redis.

The objects of a snapshot are written first. Then the log's store replaces its own snapshot by a pointer to
them, at once and only for who holds the lease. Leases, epochs and keys stay with the log.
"""

from __future__ import annotations

import re
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import TYPE_CHECKING

from agentspec.corpus.batch import check_size
from agentspec.corpus.snapshot_pointer import PIECE_BYTES, SnapshotPointer
from agentspec.corpus.snapshots import LEASE_S
from agentspec.corpus.store import CorpusStore, Cursor, Scope, ScopeStats, Snapshot
from agentspec.errors import CorpusError, SnapshotError

if TYPE_CHECKING:
    from agentspec.corpus.object_folder import ObjectFolder

_MARK = "objects:"  # before the cursor of a snapshot that is a pointer
_ROOT = "agentspec-snapshots"
_NAME = re.compile(rf"{_ROOT}/[0-9a-f]{{32}}/[0-9a-f]{{32}}/[0-9]{{6}}")
_DROP_OLD_EVERY_S = 3600.0


@dataclass(slots=True)
class _Lease:
    """A lease that this process got last. Renewing it raises ``number``; the holder knows ``given``."""

    holder: str
    ttl_s: float
    given: int
    number: int


class SnapshotStore:
    """A :class:`~agentspec.corpus.store.CorpusStore` with its snapshots in an object store. Thread-safe.

    While the object store is away, what needs a snapshot raises SnapshotError, and the log works on. Without
    a folder all is in the store itself, and a pointer that another process left there is an error.

    Args:
        store: keeps the log. It is closed with this one.
        folder: keeps the objects; None = the store itself keeps the snapshots.
        most_age_s: older objects are deleted.
    """

    def __init__(self, store: CorpusStore, folder: ObjectFolder | None, most_age_s: float) -> None:
        self._store = store
        self._folder = folder
        self._most_age_s = most_age_s
        self._leases: dict[Scope, _Lease] = {}
        self._drop_old_s = 0.0
        self.window_s = store.window_s
        self.publish, self.read, self.wait, self.end = store.publish, store.read, store.wait, store.end
        self.tenants, self.scopes, self.epoch = store.tenants, store.scopes, store.epoch
        self.marks, self.mark, self.settle = store.marks, store.mark, store.settle
        self.wrapped_key, self.replace_key = store.wrapped_key, store.replace_key
        self.check_integrity, self.close = store.check_integrity, store.close

    @property
    def num_foreign(self) -> int:
        """Count the values met that no engine wrote."""
        return self._store.num_foreign

    # ---- writing ----

    def lease(self, scope: Scope, holder: str, ttl_s: float) -> int | None:
        """Return a fencing number if the holder may write the snapshot now."""
        fence = self._store.lease(scope, holder, ttl_s)
        if fence is not None:
            self._leases[scope] = _Lease(holder, ttl_s, fence, fence)
        return fence

    def put_snapshot(self, scope: Scope, fence: int, cursor: Cursor, parts: Iterable[bytes]) -> bool:
        """Write the objects one by one, then replace the scope's snapshot at once."""
        replaced = self._pointer(scope)
        if self._folder is None:
            return self._store.put_snapshot(scope, fence, cursor, parts)
        lease = self._leases.get(scope)
        if lease is None or lease.given != fence:
            return False
        pointer = SnapshotPointer.new(self._folder.url)
        is_put = False
        try:
            whole = self._upload(self._folder, scope, lease, pointer, parts)
            if whole is not None:
                is_put = self._store.put_snapshot(scope, lease.number, _MARK + cursor, (whole.encode(),))
        finally:
            if not is_put:
                with suppress(CorpusError):
                    self._folder.delete(one.name for one in self._folder.list(_place(scope, pointer.id)))
        if is_put:
            self._drop(self._folder, scope, kept=replaced)
            self._drop_old(self._folder)
        return is_put

    def _upload(
        self,
        folder: ObjectFolder,
        scope: Scope,
        lease: _Lease,
        pointer: SnapshotPointer,
        parts: Iterable[bytes],
    ) -> SnapshotPointer | None:
        """Return the pointer with all that was written; None if the lease is lost.

        The lease is renewed before each object. It lasts longer than a call, so who gets it next meets no
        writer in the middle of one.
        """
        for piece in _pieces(parts):
            if not self._renew(scope, lease):
                return None
            pointer = pointer.with_piece(piece)
            *_, name = pointer.names()
            folder.put(_place(scope, name), b"".join(piece))
        return pointer

    def _renew(self, scope: Scope, lease: _Lease) -> bool:
        """Return False if another holder was there meanwhile, or an erasure."""
        number = self._store.lease(scope, lease.holder, lease.ttl_s)
        is_kept = number == lease.number + 1
        lease.number += is_kept
        return is_kept

    # ---- reading ----

    def snapshot(self, scope: Scope) -> Snapshot | None:
        """Return the scope's snapshot, if there is one and all its objects are there.

        Raises:
            SnapshotError: the object store can't be used, or it is another one.
        """
        found = self._store.snapshot(scope)
        if found is None or not found.cursor.startswith(_MARK):
            return found
        pointer = self._checked(scope, found)
        if pointer is None or self._folder is None:
            return None
        there = {one.name for one in self._folder.list(_place(scope, pointer.id))}
        if not there.issuperset(_place(scope, name) for name in pointer.names()):
            return None
        return Snapshot(found.cursor.removeprefix(_MARK), _parts(self._folder, scope, pointer))

    def _pointer(self, scope: Scope) -> SnapshotPointer | None:
        """Return the pointer that the store holds; None if it holds none."""
        found = self._store.snapshot(scope)
        return self._checked(scope, found) if found and found.cursor.startswith(_MARK) else None

    def _checked(self, scope: Scope, found: Snapshot) -> SnapshotPointer | None:
        part = next(found.parts, b"")
        pointer = SnapshotPointer.decode(part) if isinstance(part, bytes) else None
        if pointer and (self._folder is None or pointer.place != self._folder.url):
            raise SnapshotError(
                f"the snapshot of tenant {scope.tenant!r} is in {pointer.place!r}: name this place for "
                "snapshots, as --corpus-snapshots does"
            )
        return pointer

    # ---- erasure and retention ----

    def erase(self, scope: Scope, epoch: int = 0) -> None:
        """Remove all of the scope, and begin a new epoch. Waits for a writer in the middle of an object."""
        self._pointer(scope)
        if self._folder is None:
            return self._store.erase(scope, epoch)
        is_writing = self._store.lease(scope, f"erasure:{uuid.uuid4().hex}", LEASE_S) is None
        self._store.erase(scope, epoch)  # whoever writes notices it before the next object
        self._drop(self._folder, scope)
        if is_writing:
            time.sleep(self._folder.most_call_s)
            self._drop(self._folder, scope)
        return None

    def rewrite(
        self, scope: Scope, entries: Iterable[tuple[Cursor, bytes | None]], fence: int | None = None
    ) -> None:
        """Write the log anew, with other entries in the place of some."""
        self._store.rewrite(scope, entries, fence)

    def drop_previous(self, scope: Scope) -> None:
        """Remove all objects but the snapshot's."""
        lease = self._leases.get(scope)
        if self._folder is not None and lease is not None and not self._renew(scope, lease):
            raise CorpusError(f"another process writes the snapshot of tenant {scope.tenant!r}: repeat it")
        self._store.drop_previous(scope)
        if self._folder is not None:
            self._drop(self._folder, scope)

    def _drop(self, folder: ObjectFolder, scope: Scope, kept: SnapshotPointer | None = None) -> None:
        """Delete the scope's objects, but those of its snapshot, and of another one that is kept."""
        found = folder.list(_place(scope))
        pointers = [pointer for pointer in (self._pointer(scope), kept) if pointer]
        places = tuple(_place(scope, f"{pointer.id}/") for pointer in pointers)
        folder.delete(one.name for one in found if not one.name.startswith(places))
        folder.delete_unfinished(_place(scope))

    def _drop_old(self, folder: ObjectFolder) -> None:
        """Delete old objects of all scopes, at most once an hour, also of tenants without a writer."""
        now_s = time.time()
        if now_s < self._drop_old_s:
            return
        self._drop_old_s = now_s + _DROP_OLD_EVERY_S
        oldest_s = now_s - self._most_age_s
        folder.delete(
            one.name for one in folder.list(_ROOT) if one.modified_s < oldest_s and _NAME.fullmatch(one.name)
        )

    def stats(self) -> dict[Scope, ScopeStats]:
        """Return the sizes of all scopes that have outputs."""
        stats = self._store.stats()
        if self._folder is None:
            return stats
        sizes = Counter[str]()
        for one in self._folder.list(_ROOT):
            sizes["/".join(one.name.split("/")[:2])] += one.num_bytes
        return {
            scope: replace(one, num_snapshot_bytes=sizes.get(_place(scope), one.num_snapshot_bytes))
            for scope, one in stats.items()
        }


def _place(scope: Scope, name: str = "") -> str:
    """Return the name of a scope's object, or of its folder."""
    folder = blake2b("\0".join(scope).encode(), digest_size=16).hexdigest()
    return "/".join((_ROOT, folder, *filter(None, [name])))


def _pieces(parts: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Gather parts for one object each."""
    piece: list[bytes] = []
    num_bytes = 0
    for part in parts:
        check_size(part)
        piece.append(part)
        num_bytes += len(part)
        if num_bytes >= PIECE_BYTES:
            yield piece
            piece, num_bytes = [], 0
    if piece:
        yield piece


def _parts(folder: ObjectFolder, scope: Scope, pointer: SnapshotPointer) -> Iterator[bytes]:
    """Yield the parts. Bytes that an object lacks are missing in its last ones."""
    for name, sizes in zip(pointer.names(), pointer.pieces, strict=True):
        content = folder.get(_place(scope, name), sum(sizes))
        if content is None:
            raise SnapshotError("this snapshot was replaced while it was read: read the new one")
        start = 0
        for size in sizes:
            yield content[start : start + size]
            start += size
