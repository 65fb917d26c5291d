"""A file of lines that several processes may append to: no line is half there when the next one comes."""

from __future__ import annotations

import fcntl
import json
import logging
import mmap
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

logger = logging.getLogger("agentspec.gateway")


class LineFile:
    """Appends lines, each whole or not at all. A new file is readable by its owner alone.

    What a process that was killed left half written is taken away. Raises OSError.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        self._is_regular = stat.S_ISREG(os.fstat(self._descriptor).st_mode)  # else nothing can be taken back
        try:
            with self._alone() as size:
                self._end_last_line(size)
        except BaseException:
            self.close()
            raise

    def append(self, line: bytes) -> None:
        """Write a line. Raises OSError, and leaves the file as it was, if there is no room for all of it."""
        with self._alone() as size:
            try:
                self._write(line)
            except OSError:
                if self._is_regular:
                    os.ftruncate(self._descriptor, size)
                raise

    def close(self) -> None:
        """No line comes any more."""
        os.close(self._descriptor)

    @contextmanager
    def _alone(self) -> Iterator[int]:
        """The file's size, while nobody else appends."""
        if not self._is_regular:
            yield 0
            return
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        try:
            yield os.fstat(self._descriptor).st_size
        finally:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def _write(self, line: bytes) -> None:
        rest = memoryview(line)
        while rest:
            rest = rest[os.write(self._descriptor, rest) :]

    def _end_last_line(self, size: int) -> None:
        if not size:
            return
        with mmap.mmap(self._descriptor, size, access=mmap.ACCESS_READ) as whole:
            start = whole.rfind(b"\n") + 1
            last = whole[start:]
        if _is_half(last):
            os.ftruncate(self._descriptor, start)
            logger.warning("the last line was never written to its end: its %d bytes are gone", len(last))
        elif last:
            self._write(b"\n")


def _is_half(line: bytes) -> bool:
    """An object without its end; what was no object was not written by us."""
    try:
        json.loads(line)
    except ValueError:
        return line.startswith(b"{")
    return False
