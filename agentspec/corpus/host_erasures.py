"""The fleet's erasures, carried out in the corpus of a host as well."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path

from agentspec.corpus.erasure import Tombstone
from agentspec.corpus.worker import Worker
from agentspec.errors import CorpusError

logger = logging.getLogger("agentspec")

MARKS = "erased"  # folder of marks in that of the corpus
_PAUSE_S = 0.5
_MARKS_KEPT_S = 30 * 86400.0  # longer than any store keeps a tombstone


class HostErasures:
    """Carries each erasure out once, however many engines of the host meet it, and however often.

    A mark says that it was carried out: an empty file, which any engine of the host finds. An engine that
    ends before has left no mark, and meets the erasure again after its next start.

    Args:
        folder: of the host's corpus.
        vocabulary: fingerprint of the tokenizer.
        erase: erases in the host's corpus, a whole tenant if there is no tombstone. May raise CorpusError.

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
        self._is_failing = False
        self._worker = Worker("host-erasures", self._wait_and_step)
        try:
            self._marks.mkdir(parents=True, exist_ok=True)
            self._drop_old_marks()
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
            tenant: whose outputs.
            name: of the erasure, unique in the tenant.
            tombstone: names a stage or a person; None = the whole tenant.
        """
        self._waiting[self._mark(tenant, name)] = tenant, tombstone

    def step(self) -> None:
        """Carry out what waits. What fails waits for the next step."""
        for mark, (tenant, tombstone) in list(self._waiting.items()):
            try:
                if not mark.exists():
                    self._erase(tenant, tombstone)
                mark.touch()  # a mark in use stays
                self._is_failing = False
            except (CorpusError, OSError) as error:
                self._fail(error)
                return
            del self._waiting[mark]

    def _fail(self, error: Exception) -> None:
        if not self._is_failing:
            logger.warning("an erasure of the fleet is not yet one in the corpus of this host: %s", error)
        self._is_failing = True

    def _mark(self, tenant: str, name: bytes) -> Path:
        content = "\0".join((self._vocabulary, tenant)).encode() + b"\0" + name
        return self._marks / blake2b(content, digest_size=16).hexdigest()

    def _drop_old_marks(self) -> None:
        before_s = time.time() - _MARKS_KEPT_S
        for mark in os.scandir(self._marks):
            if mark.stat().st_mtime < before_s:
                Path(mark.path).unlink(missing_ok=True)

    def _wait_and_step(self) -> None:
        if not self._worker.closing.wait(_PAUSE_S):
            self.step()
