"""Lines stay whole when the process or the disk fails."""

from __future__ import annotations

import resource
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agentspec.gateway.telemetry.recorder import LineFile


@contextmanager
def room_for(num_bytes: int) -> Iterator[None]:
    """Limit the size of this process's files to ``num_bytes``."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)


def test_a_line_that_finds_no_room_leaves_no_trace(tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    file = LineFile(path)
    file.append(b"{}\n")
    with room_for(100), pytest.raises(OSError, match="too large"):
        file.append(b"x" * 1000)
    file.append(b"[]\n")
    file.close()
    assert path.read_bytes() == b"{}\n[]\n"
    assert path.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b'{"a": 1}\n{"a":', b'{"a": 1}\n'),
        (b'{"a":', b""),
        (b'{"a": 1}', b'{"a": 1}\n'),
        (b"my notes", b"my notes\n"),
        (b'{"a": 1}\n', b'{"a": 1}\n'),
        (b"", b""),
    ],
)
def test_what_a_killed_process_left(before: bytes, after: bytes, tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    path.write_bytes(before)
    file = LineFile(path)
    file.append(b"{}\n")
    file.close()
    assert path.read_bytes() == after + b"{}\n"


def test_several_write(tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    files = [LineFile(path) for _ in range(4)]
    lines = [bytes([97 + number]) * 5000 + b"\n" for number in range(4)]

    def write(file: LineFile, line: bytes) -> None:
        for _ in range(20):
            file.append(line)

    threads = [threading.Thread(target=write, args=pair) for pair in zip(files, lines, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for file in files:
        file.close()
    assert sorted(path.read_bytes().splitlines(keepends=True)) == sorted(lines * 20)
