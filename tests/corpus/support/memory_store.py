"""A corpus store in memory that can be away, lose entries, and be made to fail."""

from __future__ import annotations

import itertools
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from agentspec.corpus.store import START, Cursor, Entry, Marks, Scope, ScopeStats, Snapshot
from agentspec.errors import CorpusError


@dataclass
class Kept:
    """What is kept of one scope."""

    entries: dict[int, bytes] = field(default_factory=dict)  # by id, rising
    snapshot: tuple[Cursor, list[bytes]] | None = None
    epoch: int = 0
    erasure: int = 0
    fence: int = 0
    holder: str = ""
    lease_end_s: float = 0.0
    key: bytes | None = None


class MemoryStore:
    """A CorpusStore whose clock is ``now_s``. While ``is_away``, every call raises CorpusError."""

    window_s = 0.25
    num_foreign = 0

    def __init__(self) -> None:
        self.now_s = 0.0
        self.is_away = False
        self.num_failing = 0  # calls of publish() that raise, though the entry is there
        self.num_calls = 0
        self.kept = defaultdict[Scope, Kept](Kept)
        self._ids = itertools.count(1)
        self._changed = threading.Condition(threading.RLock())

    def publish(
        self,
        scope: Scope,
        batch: bytes,
        epoch: int | None = None,
        *,
        key: bytes = b"",
        is_erasure: bool = False,
    ) -> bool:
        with self._changed:
            self._check()
            kept = self.kept[scope]
            if epoch is not None and epoch != kept.epoch:
                return False
            kept.key = kept.key or key or None
            if key and not (kept.key or b"").startswith(key):
                return False
            kept.erasure += is_erasure
            self.append(scope, batch)
            if self.num_failing > 0:
                self.num_failing -= 1
                raise CorpusError("the answer is lost")
            return True

    def read(self, scope: Scope, after: Cursor, most_bytes: int) -> list[Entry]:
        with self._changed:
            self._check()
            found: list[Entry] = []
            for number, batch in self.kept[scope].entries.items():
                if number > int(after or 0):
                    if found and sum(len(entry.batch) for entry in found) + len(batch) > most_bytes:
                        break
                    found.append(Entry(str(number), batch))
            return found

    def wait(self, cursors: dict[Scope, Cursor], timeout_s: float) -> None:
        with self._changed:
            self._check()
            self._changed.wait_for(
                lambda: any(int(self.end(scope) or 0) > int(after or 0) for scope, after in cursors.items()),
                timeout_s,
            )

    def end(self, scope: Scope) -> Cursor:
        self._check()
        return str(max(self.kept[scope].entries, default=START))

    def lease(self, scope: Scope, holder: str, ttl_s: float) -> int | None:
        self._check()
        kept = self.kept[scope]
        if kept.holder not in ("", holder) and kept.lease_end_s > self.now_s:
            return None
        kept.holder, kept.lease_end_s = holder, self.now_s + ttl_s
        kept.fence += 1
        return kept.fence

    def put_snapshot(self, scope: Scope, fence: int, cursor: Cursor, parts: Iterable[bytes]) -> bool:
        self._check()
        written = list(parts)
        kept = self.kept[scope]
        if fence != kept.fence:
            return False
        kept.snapshot = (cursor, written)
        return True

    def snapshot(self, scope: Scope) -> Snapshot | None:
        self._check()
        kept = self.kept[scope]
        return Snapshot(kept.snapshot[0], self._parts(kept.snapshot[1])) if kept.snapshot else None

    def marks(self, scope: Scope) -> Marks:
        self._check()
        return Marks(self.kept[scope].epoch, self.kept[scope].erasure)

    def mark(self, scope: Scope, erasure: int) -> None:
        self._check()
        self.kept[scope].erasure = max(self.kept[scope].erasure, erasure)

    def erase(self, scope: Scope, epoch: int = 0) -> None:
        self._check()
        kept = self.kept[scope]
        if epoch <= kept.epoch and epoch:
            return
        self.kept[scope] = Kept(epoch=epoch or kept.epoch + 1, erasure=kept.erasure, fence=kept.fence + 1)

    def rewrite(
        self, scope: Scope, entries: Iterable[tuple[Cursor, bytes | None]], fence: int | None = None
    ) -> None:
        self._check()
        kept = self.kept[scope]
        changes = {int(cursor): batch for cursor, batch in entries}
        if fence not in (None, kept.fence):
            raise CorpusError("another holder was there")
        rewritten = {number: changes.get(number, batch) for number, batch in kept.entries.items()}
        kept.entries = {number: batch for number, batch in rewritten.items() if batch is not None}

    def drop_previous(self, scope: Scope) -> None:
        self._check()

    def settle(self, timeout_s: float) -> list[str]:
        return []

    def replace_key(self, scope: Scope, before: bytes, wrapped: bytes) -> bool:
        self._check()
        if self.kept[scope].key != before:
            return False
        self.kept[scope].key = wrapped
        return True

    def wrapped_key(self, scope: Scope, candidate: bytes | None = None) -> bytes | None:
        self._check()
        kept = self.kept[scope]
        kept.key = kept.key or candidate
        return kept.key

    def stats(self) -> dict[Scope, ScopeStats]:
        self._check()
        return {
            scope: ScopeStats(len(kept.entries), sum(map(len, kept.entries.values())), 0, 0)
            for scope, kept in self.kept.items()
        }

    def scopes(self) -> list[Scope]:
        self._check()
        return sorted(self.kept)

    def close(self) -> None:
        """Do nothing: several replicas of a test share it."""

    def append(self, scope: Scope, batch: bytes) -> None:
        """Add an entry, even while the store is away."""
        with self._changed:
            self.kept[scope].entries[next(self._ids)] = batch
            self._changed.notify_all()

    def lose(self, scope: Scope, num_entries: int) -> None:
        """Drop the oldest entries."""
        kept = self.kept[scope]
        for number in list(kept.entries)[:num_entries]:
            del kept.entries[number]

    def _parts(self, parts: list[bytes]) -> Iterator[bytes]:
        for part in parts:
            self._check()
            yield part

    def _check(self) -> None:
        self.num_calls += 1
        if self.is_away:
            raise CorpusError("the store is away")
