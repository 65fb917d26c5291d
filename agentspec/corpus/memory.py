"""What erasures need to know: the outputs that the trees of this process hold, and the erasures that it met.

The oldest outputs are known by the names of their stages and persons alone. Nothing here touches a tree.
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

_ENTRY_BYTES = 400  # of an output, without the tokens
_MOST_NAMES = 1 << 16  # per tenant
_MOST_ERASURES = 1024
_REPEAT_S = 60.0  # a repeated tombstone belongs to the erasure within this time


@dataclass(slots=True)
class _Names:
    """The subjects and stage paths of outputs that trees hold and the memory does not."""

    names: set[bytes | tuple[str, ...]] = field(default_factory=set)
    is_everything: bool = False  # too many names

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
    """The outputs in the trees, within a number of bytes: of the oldest only the names stay. Thread-safe."""

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
        """Note that the trees hold an output of this stage and subject, whatever its tokens."""
        with self._lock:
            self._note(stage, subject)

    def take(self, tenant: str, tombstone: Tombstone) -> list[Output] | None:
        """Forget the outputs that a tombstone covers, and return them. O(outputs).

        Returns:
            None if the trees may hold others that it covers.
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
        """Forget all outputs of a tenant: its trees are empty."""
        with self._lock:
            self._names.pop(tenant, None)
            self._keep(one for one in self._outputs if one.stage.tenant != tenant)

    def noted_tenants(self) -> list[str]:
        """Return the tenants of which the trees hold outputs that are not remembered."""
        with self._lock:
            return list(self._names)

    @property
    def num_bytes(self) -> int:
        """Bytes in use, estimated."""
        return self._num_bytes

    # ---- the lock is held ----

    def _keep(self, outputs: Iterable[Output]) -> None:
        self._outputs = deque(outputs)
        self._num_bytes = sum(map(_size, self._outputs))

    def _note(self, stage: StageKey, subject: bytes) -> None:
        self._names.setdefault(stage.tenant, _Names()).add(stage, subject)


def _size(output: Output) -> int:
    return output.tokens.nbytes + _ENTRY_BYTES


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
