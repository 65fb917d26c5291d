"""A corpus store in memory that can be away, lose entries, and be made to fail."""

from __future__ import annotations

import itertools
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from agentspec.corpus.store import START, Cursor, Entry, Scope, ScopeStats, Snapshot
from agentspec.errors import CorpusError


@dataclass
class Kept:
    """What is kept of one scope."""

    entries: dict[int, bytes] = field(default_factory=dict)  # by id, rising
    snapshot: tuple[Cursor, list[bytes]] | None = None
    epoch: int = 0
    fence: int = 0
    holder: str = ""
    lease_end_s: float = 0.0
    key: bytes | None = None


class MemoryStore:
    """A CorpusStore whose clock is ``now_s``. While ``is_away``, every call raises CorpusError."""

    window_s = 0.25

    def __init__(self) -> None:
        self.now_s = 0.0
        self.is_away = False
        self.num_failing = 0  # calls of publish() that raise, though the entry is there
        self.num_calls = 0
        self.kept = defaultdict[Scope, Kept](Kept)
        self._ids = itertools.count(1)
        self._changed = threading.Condition(threading.RLock())

    def publish(self, scope: Scope, batch: bytes, epoch: int | None = None) -> bool:
        with self._changed:
            self._check()
            kept = self.kept[scope]
            if epoch is not None and epoch != kept.epoch:
                return False
            self.append(scope, batch)
            if self.num_failing > 0:
                self.num_failing -= 1
                raise CorpusError("the answer is lost")
            return True

    def tenants(self, vocabulary: str) -> list[str]:
        self._check()
        return sorted(
            scope.tenant
            for scope, kept in list(self.kept.items())
            if scope.vocabulary == vocabulary and (kept.entries or kept.snapshot)
        )

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

    def epoch(self, scope: Scope) -> int:
        self._check()
        return self.kept[scope].epoch

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

    def erase(self, scope: Scope) -> None:
        self._check()
        kept = self.kept[scope]
        self.kept[scope] = Kept(epoch=kept.epoch + 1, fence=kept.fence + 1)

    def rewrite(self, scope: Scope, entries: Iterable[tuple[Cursor, bytes | None]]) -> None:
        self._check()
        kept = self.kept[scope]
        for cursor, batch in list(entries):
            if kept.entries.pop(int(cursor), None) is not None and batch is not None:
                kept.entries[next(self._ids)] = batch

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

    def check_integrity(self) -> list[str]:
        return []

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
