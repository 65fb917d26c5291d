"""What the trees of this process hold, for erasures: late outputs whole, older ones by name."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from agentspec.corpus.batch import ForgetSubject, Output, Tombstone, covers, is_covered
from agentspec.stages import StageKey

_ENTRY_BYTES = 400  # without the tokens
_MOST_NAMES = 1 << 16  # per tenant


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
