"""The fleet's erasures, carried out in the corpus of a host as well."""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path

from agentspec.corpus.erasure import Tombstone
from agentspec.corpus.worker import Worker
from agentspec.errors import AgentSpecError, CorpusError

logger = logging.getLogger("agentspec")

MARKS = "erased"  # folder of marks in that of the corpus
_PAUSE_S = 0.5


class HostErasures:
    """Carries each erasure out once, however many engines of the host meet it, and however often.

    A mark says that it was carried out: an empty file, which any engine of the host finds. An engine that
    ends before has left no mark, and meets the erasure again after its next start.

    Args:
        folder: of the host's corpus.
        vocabulary: fingerprint of the tokenizer.
        erase: erases in the host's corpus, a whole tenant if there is no tombstone. May raise CorpusError.

    Attributes:
        num_failures: attempts that failed.

    Raises:
        CorpusError: the folder can't be used.
    """

    def __init__(
        self, folder: Path, vocabulary: str, erase: Callable[[str, Tombstone | None], object]
    ) -> None:
        self._marks = folder / MARKS
        self._vocabulary = vocabulary
        self._erase = erase
        self._waiting: dict[Path, tuple[str, Tombstone | None]] = {}  # by their marks
        self._done: set[Path] = set()  # marks of what this process has erased
        self._is_failing = False
        self._worker = Worker("host-erasures", self._wait_and_step)
        self.num_failures = 0
        try:
            self._marks.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CorpusError(f"the folder {str(self._marks)!r} can't be used: {error.strerror}") from error

    def start(self) -> None:
        """Start the thread."""
        self._worker.start()

    def close(self, timeout_s: float = 5.0) -> None:
        """End the thread."""
        self._worker.close(timeout_s)

    def note(self, tenant: str, name: bytes, tombstone: Tombstone | None) -> None:
        """Erase soon, unless it was done before. Thread-safe.

        Args:
            tenant: owner of the outputs.
            name: of the erasure, unique in the tenant.
            tombstone: names a stage or a person; None = the whole tenant.
        """
        self._waiting[self._mark(tenant, name)] = tenant, tombstone

    def step(self) -> None:
        """Carry out what waits. What fails waits for the next step."""
        failure: Exception | None = None
        for mark, (tenant, tombstone) in list(self._waiting.items()):
            try:
                with self._alone() as is_alone:
                    if is_alone:
                        self._carry_out(mark, tenant, tombstone)
                        del self._waiting[mark]
            except (AgentSpecError, OSError) as error:
                failure = error
                self.num_failures += 1
        if failure is not None and not self._is_failing:
            logger.warning("an erasure of the fleet is not yet one in the corpus of this host: %s", failure)
        self._is_failing = failure is not None

    def _carry_out(self, mark: Path, tenant: str, tombstone: Tombstone | None) -> None:
        if mark not in self._done and not mark.exists():
            self._erase(tenant, tombstone)
        self._done.add(mark)  # if the mark can't be written, only that is tried again
        mark.touch()

    @contextmanager
    def _alone(self) -> Iterator[bool]:
        """Keep the other engines of the host from erasing. Yields False if one of them is erasing now."""
        self._marks.mkdir(parents=True, exist_ok=True)
        folder = os.open(self._marks, os.O_RDONLY | os.O_DIRECTORY)
        try:
            yield _is_locked(folder)
        finally:
            os.close(folder)

    def _mark(self, tenant: str, name: bytes) -> Path:
        content = "\0".join((self._vocabulary, tenant)).encode() + b"\0" + name
        return self._marks / blake2b(content, digest_size=16).hexdigest()

    def _wait_and_step(self) -> None:
        if not self._worker.closing.wait(_PAUSE_S):
            self.step()


def _is_locked(folder: int) -> bool:
    """Lock a folder, by its descriptor. Return False if another descriptor has the lock."""
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
