"""The outputs that this process has in its trees and that other engines know as well."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

from agentspec.corpus.batch import ForgetSubject
from agentspec.corpus.erasure import Tombstone
from agentspec.corpus.output import Output
from agentspec.stages import StageKey

Path = tuple[str, ...]

_ENTRY_BYTES = 600  # without the tokens
_MOST_LOST = 1 << 16  # names per tenant


@dataclass(slots=True)
class _Known:
    output: Output
    subjects: frozenset[bytes] = frozenset()  # most have none


@dataclass(slots=True)
class _Lost:
    """Names of the outputs that trees hold and the memory does not."""

    names: set[bytes | Path] = field(default_factory=set)  # subjects and stage paths
    is_everything: bool = False  # too many names

    def add(self, name: bytes | Path) -> None:
        self.names.add(name)
        if len(self.names) > _MOST_LOST:
            self.names.clear()
            self.is_everything = True

    def includes(self, tombstone: Tombstone) -> bool:
        if self.is_everything:
            return True
        if isinstance(tombstone, ForgetSubject):
            return tombstone.subject in self.names
        depth = len(tombstone.path)
        return any(isinstance(name, tuple) and name[:depth] == tombstone.path for name in self.names)


class OutputMemory:
    """Outputs by tenant and digest, within a number of bytes. Thread-safe.

    The least recently used leaves first. The memory answers which outputs are known, which tokens a digest
    stands for, and which outputs an erasure covers.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[str, bytes], _Known] = OrderedDict()
        self._lost: dict[str, _Lost] = {}
        self._num_bytes = 0

    def add(self, output: Output) -> None:
        """Remember an output as the most recently used."""
        digest = output.digest  # outside the lock
        with self._lock:
            known = self._touch(output.stage.tenant, digest)
            if known is None:
                known = self._known[output.stage.tenant, digest] = _Known(output)
                self._num_bytes += _size(output)
            if output.subject:
                known.subjects |= {output.subject}
            while self._num_bytes > self._most_bytes:
                self._drop_oldest()

    def note(self, stage: StageKey, subject: bytes = b"") -> None:
        """Note that the trees hold an output of this stage and subject that is not remembered."""
        with self._lock:
            self._lose(stage, (subject,))

    def is_known(self, output: Output) -> bool:
        """Return True if the output is remembered with its subject. It is then the most recently used."""
        digest = output.digest
        with self._lock:
            known = self._touch(output.stage.tenant, digest)
            return known is not None and (not output.subject or output.subject in known.subjects)

    def get(self, tenant: str, digest: bytes) -> Output | None:
        """Return the output of this digest, or None. It is then the most recently used."""
        with self._lock:
            known = self._touch(tenant, digest)
            return None if known is None else known.output

    def recall(self, tenant: str, tombstone: Tombstone) -> list[Output] | None:
        """Return the outputs that a tombstone covers, or None if the trees may hold others. O(outputs)."""
        with self._lock:
            lost = self._lost.get(tenant)
            if lost is not None and lost.includes(tombstone):
                return None
            own = [known for (owner, _), known in self._known.items() if owner == tenant]
        if isinstance(tombstone, ForgetSubject):
            return [known.output for known in own if tombstone.subject in known.subjects]
        depth = len(tombstone.path)
        return [known.output for known in own if known.output.stage.path[:depth] == tombstone.path]

    def forget(self, tenant: str, digests: Iterable[bytes]) -> None:
        """Forget outputs that the trees no longer hold."""
        with self._lock:
            for digest in digests:
                if known := self._known.pop((tenant, digest), None):
                    self._num_bytes -= _size(known.output)

    def forget_tenant(self, tenant: str) -> None:
        """Forget all outputs of a tenant: its trees are empty."""
        with self._lock:
            digests = [digest for owner, digest in self._known if owner == tenant]
            self._lost.pop(tenant, None)
        self.forget(tenant, digests)

    def lost_tenants(self) -> list[str]:
        """Return the tenants with outputs in the trees that are not remembered."""
        with self._lock:
            return list(self._lost)

    @property
    def num_bytes(self) -> int:
        """Bytes in use, estimated."""
        return self._num_bytes

    # ---- the lock is held ----

    def _touch(self, tenant: str, digest: bytes) -> _Known | None:
        known = self._known.get((tenant, digest))
        if known is not None:
            self._known.move_to_end((tenant, digest))
        return known

    def _drop_oldest(self) -> None:
        _, known = self._known.popitem(last=False)
        self._num_bytes -= _size(known.output)
        self._lose(known.output.stage, known.subjects)

    def _lose(self, stage: StageKey, subjects: Iterable[bytes]) -> None:
        lost = self._lost.setdefault(stage.tenant, _Lost())
        lost.add(stage.path)
        for subject in subjects:
            if subject:
                lost.add(subject)


def _size(output: Output) -> int:
    return output.tokens.nbytes + _ENTRY_BYTES
