"""The erasures of one tenant that a follower met, and the records that they cover. It touches no tree."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from agentspec.corpus.batch import Batch, Output, Tombstone, is_covered, repeated

RecordId = tuple[bytes, int]  # origin, sequence number
Tombstones = dict[RecordId, Tombstone]

_MOST_ERASURES = 1024
_REPEAT_S = 60.0  # a repeated tombstone belongs to the erasure within this time


@dataclass(frozen=True, slots=True)
class _Stale:
    """Own records below a number are older than an erasure, wherever they stand in the log."""

    tombstone: Tombstone
    below: int
    met_s: float


class MetErasures:
    """Remembers each erasure, so that it is applied once."""

    def __init__(self) -> None:
        self._in_log: OrderedDict[RecordId, Tombstone] = OrderedDict()
        self._in_snapshot: Tombstones = {}
        self._awaited: set[RecordId] = set()  # to be met again, after an erasure began anew
        self._stale: list[_Stale] = []

    def meet(self, name: RecordId, tombstone: Tombstone) -> bool:
        """Note a tombstone of the log. Return False if it was met before."""
        if name in self._in_log:
            self._awaited.discard(name)
            return False
        self._in_log[name] = tombstone
        if len(self._in_log) > _MOST_ERASURES:
            self._awaited.discard(self._in_log.popitem(last=False)[0])
        return True

    def look_up(self, found: Tombstones) -> Iterator[Tombstone]:
        """Note tombstones of a snapshot. Yield those that were never met."""
        for name, tombstone in found.items():
            if name not in self._in_log and name not in self._in_snapshot:
                self._in_snapshot[name] = tombstone
                yield tombstone

    def all(self) -> list[Tombstone]:
        """Return what was ever met, each once, as an engine repeats it."""
        return list(dict.fromkeys(map(repeated, [*self._in_snapshot.values(), *self._in_log.values()])))

    def await_again(self, found: Tombstones) -> None:
        """Begin to read the log anew: all erasures stand later in it, but those found in the snapshot."""
        self._awaited = self._in_log.keys() - found.keys()

    def stop_awaiting(self) -> None:
        """Note that the log was read up to where it ended when it was begun anew."""
        self._awaited.clear()

    def forget(self) -> None:
        """Forget all that were met: the whole tenant was erased."""
        self._in_log.clear()
        self._in_snapshot.clear()

    def cover(self, output: Output) -> bool:
        """Return True if a tombstone that stands later in the log covers the output."""
        return any(is_covered(output, self._in_log[name]) for name in self._awaited)

    def note_applied(self, tombstone: Tombstone, below: int, now_s: float) -> None:
        """Note that own records with numbers below ``below`` are older than an erasure.

        Not if it is one that another engine repeats: two engines would repeat it for each other without end.
        """
        self._stale = [stale for stale in self._stale if stale.met_s > now_s - _REPEAT_S]
        again = repeated(tombstone)
        same = [stale for stale in self._stale if repeated(stale.tombstone) == again]
        if not (same and tombstone.is_repeated):
            self._stale = [stale for stale in self._stale if stale not in same]
            self._stale.append(_Stale(tombstone, below, now_s))

    @property
    def has_applied(self) -> bool:
        """True if own records may be older than an erasure that they stand behind."""
        return bool(self._stale)

    def late(self, batch: Batch) -> Iterator[tuple[int, Tombstone]]:
        """Yield own records that are older than an erasure: their numbers, and the erasure.

        Other engines may have learned such a record. A batch sent twice may be late the second time.
        """
        for number, record in enumerate(batch.records, batch.first):
            for stale in self._stale:
                if number < stale.below and is_covered(record, stale.tombstone):
                    yield number, stale.tombstone
