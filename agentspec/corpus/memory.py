"""The data behind erasures: outputs that this process's trees hold, and erasures read from the log.

Beyond a number of bytes, only stage and subject of the oldest outputs are kept. This module changes no tree.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from agentspec.corpus.batch import Batch, ForgetSubject, Output, Tombstone, covers, is_covered, repeated
from agentspec.stages import StageKey

RecordId = tuple[bytes, int]  # origin, sequence number
Tombstones = dict[RecordId, Tombstone]

_ENTRY_BYTES = 400  # bytes of one output without its tokens
_MOST_NAMES = 1 << 16  # stages and subjects per tenant
_MOST_ERASURES = 1024
_REPEAT_S = 60.0  # a repeated tombstone within this time of an erasure belongs to that erasure


@dataclass(slots=True)
class _Names:
    """Stages and subjects of outputs that the trees hold and the memory no longer does."""

    names: set[bytes | tuple[str, ...]] = field(default_factory=set)
    is_everything: bool = False  # set if there are too many names: every erasure then matches

    def add(self, stage: StageKey, subject: bytes) -> None:
        self.names.add(stage.path)
        if subject:
            self.names.add(subject)
        if len(self.names) > _MOST_NAMES:
            self.names.clear()
            self.is_everything = True

    def includes(self, tombstone: Tombstone) -> bool:
        if self.is_everything:
            return True
        if isinstance(tombstone, ForgetSubject):
            return tombstone.subject in self.names
        return any(isinstance(name, tuple) and covers(tombstone, name, b"") for name in self.names)


class OutputMemory:
    """Remembers the outputs in the trees within a number of bytes. Thread-safe.

    Of outputs beyond that number, only stage and subject are remembered.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._outputs: deque[Output] = deque()
        self._names: dict[str, _Names] = {}  # by tenant
        self._num_bytes = 0

    def add(self, output: Output) -> None:
        """Remember an output that the trees hold."""
        with self._lock:
            self._outputs.append(output)
            self._num_bytes += _size(output)
            while self._num_bytes > self._most_bytes:
                oldest = self._outputs.popleft()
                self._num_bytes -= _size(oldest)
                self._note(oldest.stage, oldest.subject)

    def note(self, stage: StageKey, subject: bytes = b"") -> None:
        """Note that the trees hold an output of this stage and subject with unknown tokens."""
        with self._lock:
            self._note(stage, subject)

    def take(self, tenant: str, tombstone: Tombstone) -> list[Output] | None:
        """Remove the outputs that a tombstone covers from this memory, and return them. O(outputs).

        Returns:
            None if the trees may hold further outputs that the tombstone covers.
        """
        with self._lock:
            if tenant in self._names and self._names[tenant].includes(tombstone):
                return None
            found = [
                one for one in self._outputs if one.stage.tenant == tenant and is_covered(one, tombstone)
            ]
            if found:
                gone = set(map(id, found))
                self._keep(one for one in self._outputs if id(one) not in gone)
            return found

    def forget_tenant(self, tenant: str) -> None:
        """Remove all outputs of a tenant from this memory. The caller has emptied the tenant's trees."""
        with self._lock:
            self._names.pop(tenant, None)
            self._keep(one for one in self._outputs if one.stage.tenant != tenant)

    def noted_tenants(self) -> list[str]:
        """Return the tenants with outputs that the trees may hold and this memory does not."""
        with self._lock:
            return list(self._names)

    @property
    def num_bytes(self) -> int:
        """Bytes in use, estimated."""
        return self._num_bytes

    # ---- the caller holds the lock ----

    def _keep(self, outputs: Iterable[Output]) -> None:
        self._outputs = deque(outputs)
        self._num_bytes = sum(map(_size, self._outputs))

    def _note(self, stage: StageKey, subject: bytes) -> None:
        self._names.setdefault(stage.tenant, _Names()).add(stage, subject)


def _size(output: Output) -> int:
    return output.tokens.nbytes + _ENTRY_BYTES


@dataclass(frozen=True, slots=True)
class _Stale:
    """An erasure, and a number: own records with lower numbers are older than the erasure."""

    tombstone: Tombstone
    below: int
    met_s: float


class MetErasures:
    """The erasures that were read from the log and the snapshot. Each is applied once."""

    def __init__(self) -> None:
        self._in_log: OrderedDict[RecordId, Tombstone] = OrderedDict()
        self._in_snapshot: Tombstones = {}
        self._awaited: set[RecordId] = set()  # to be read a second time
        self._stale: list[_Stale] = []

    def meet(self, name: RecordId, tombstone: Tombstone) -> bool:
        """Note a tombstone of the log. Return False if it was noted before."""
        if name in self._in_log:
            self._awaited.discard(name)
            return False
        self._in_log[name] = tombstone
        if len(self._in_log) > _MOST_ERASURES:
            self._awaited.discard(self._in_log.popitem(last=False)[0])
        return True

    def look_up(self, found: Tombstones) -> Iterator[Tombstone]:
        """Note the tombstones of a snapshot. Yield those that were not noted before."""
        for name, tombstone in found.items():
            if name not in self._in_log and name not in self._in_snapshot:
                self._in_snapshot[name] = tombstone
                yield tombstone

    def all(self) -> list[Tombstone]:
        """Return each noted erasure once, marked as repeated."""
        return list(dict.fromkeys(map(repeated, [*self._in_snapshot.values(), *self._in_log.values()])))

    def await_again(self, found: Tombstones) -> None:
        """Begin to read the log again. All erasures except those of the snapshot follow later in the log."""
        self._awaited = self._in_log.keys() - found.keys()

    def stop_awaiting(self) -> None:
        """Note that the log was read up to the entry that was the newest when reading began again."""
        self._awaited.clear()

    def forget(self) -> None:
        """Remove all noted erasures, after the whole tenant was erased."""
        self._in_log.clear()
        self._in_snapshot.clear()

    def cover(self, output: Output) -> bool:
        """Return True if a tombstone later in the log covers the output."""
        return any(is_covered(output, self._in_log[name]) for name in self._awaited)

    def note_applied(self, tombstone: Tombstone, below: int, now_s: float) -> None:
        """Note that own records with numbers below ``below`` are older than an erasure.

        Does nothing if another engine repeated the erasure: otherwise two engines would repeat it without
        end.
        """
        self._stale = [stale for stale in self._stale if stale.met_s > now_s - _REPEAT_S]
        again = repeated(tombstone)
        same = [stale for stale in self._stale if repeated(stale.tombstone) == again]
        if not (same and tombstone.is_repeated):
            self._stale = [stale for stale in self._stale if stale not in same]
            self._stale.append(_Stale(tombstone, below, now_s))

    @property
    def has_applied(self) -> bool:
        """True if own records that are older than an erasure may appear behind it in the log."""
        return bool(self._stale)

    def late(self, batch: Batch) -> Iterator[tuple[int, Tombstone]]:
        """Yield own records that are older than an erasure: their sequence numbers, and the erasure.

        Other engines may have learned such a record. A batch that was sent twice may follow the erasure only
        the second time.
        """
        for number, record in enumerate(batch.records, batch.first):
            for stale in self._stale:
                if number < stale.below and is_covered(record, stale.tombstone):
                    yield number, stale.tombstone
