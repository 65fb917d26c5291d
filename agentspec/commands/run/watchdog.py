"""Watchdog process: ends a program and its descendants if the parent process is killed.

``run_program`` starts this script in a session of its own: neither the terminal's signals nor a kill of
the process group reach it. It reads the program's process id from standard input and waits. ``HAS_ENDED``
means that the program has ended, or did not start. End of file without it means that the parent was killed.
The script then sends SIGTERM to the program and its descendants, and later kills them. A daemon survives: it
is not a descendant, and has left the terminal session.
Imports only the standard library.

    python watchdog.py RUN_ID SESSION_ID
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

HAS_ENDED = b"ended\n"
RUN_VARIABLE = "AGENTSPEC_RUN"  # in the environment of the program and of its descendants
STOP_TIMEOUT_S = 5.0
GIVE_UP_S = 15.0
POLL_S = 0.05
PROC = Path("/proc")


class Process(NamedTuple):
    """One row of the process table. ``started`` distinguishes it from a later process with the same id."""

    pid: int
    parent: int
    started: str
    session: int | None = None


def main() -> int:
    """Wait for the end. Return 0 if the program ended on its own, 1 if the watchdog had to end it."""
    run_id, session = sys.argv[1], int(sys.argv[2])
    line = _read_line()
    if line == HAS_ENDED:
        return 0
    tree = ProgramTree(run_id, session, int(line) if line else None)
    if line and _read_line() == HAS_ENDED:
        return 0
    tree.end()
    return 1


class ProgramTree:
    """The program and its descendants; on Linux also orphans that have its mark in their environment."""

    def __init__(self, run_id: str, session: int, pid: int | None) -> None:
        self._mark = f"{RUN_VARIABLE}={run_id}".encode()
        self._session = session
        program = processes().get(pid) if pid is not None else None
        self._known = {program.pid: program.started} if program else {}

    def end(self) -> None:
        """End all of its processes. Return when none is left, or when they can't be ended."""
        began_s, asked = time.monotonic(), set[int]()
        while alive := self.find():
            waited_s = time.monotonic() - began_s
            if waited_s > GIVE_UP_S:
                return
            _send(alive - asked, signal.SIGTERM)
            _send(alive - asked, signal.SIGCONT)  # a stopped process would not end
            asked |= alive
            if waited_s > STOP_TIMEOUT_S:
                _send(alive, signal.SIGKILL)
            time.sleep(POLL_S)

    def find(self) -> set[int]:
        """Return the ids of the running processes, including found ones with a parent that has ended."""
        table = processes()
        self._known = {
            pid: started
            for pid, started in self._known.items()
            if pid in table and table[pid].started == started
        }
        found = [*self._known, *(one.pid for one in table.values() if self._is_orphan(one))]
        children: dict[int, list[int]] = {}
        for one in table.values():
            children.setdefault(one.parent, []).append(one.pid)
        while found:
            pid = found.pop()
            self._known[pid] = table[pid].started
            found += [child for child in children.get(pid, ()) if child not in self._known]
        self._known.pop(os.getpid(), None)
        return set(self._known)

    def _is_orphan(self, one: Process) -> bool:
        if one.session != self._session or one.pid in self._known:
            return False
        try:
            return self._mark in (PROC / str(one.pid) / "environ").read_bytes().split(b"\0")
        except OSError:
            return False


def processes() -> dict[int, Process]:
    """Return the process table by id, without ended processes."""
    if (PROC / "self" / "stat").exists():
        rows = (_read_stat(path) for path in PROC.iterdir() if path.name.isdigit())
        return {one.pid: one for one in rows if one is not None}
    shown = subprocess.run(
        ["ps", "-A", "-o", "pid=,ppid=,stat=,lstart="], capture_output=True, text=True, check=False
    )
    return {one.pid: one for line in shown.stdout.splitlines() if (one := _read_row(line)) is not None}


def _read_stat(path: Path) -> Process | None:
    try:
        _, _, fields = (path / "stat").read_text(errors="replace").rpartition(")")  # a name may hold ")"
    except OSError:
        return None
    state, parent, _, session, *rest = fields.split()
    if state in "ZX":
        return None
    return Process(int(path.name), int(parent), rest[15], int(session))


def _read_row(line: str) -> Process | None:
    pid, parent, state, started = line.split(maxsplit=3)
    return None if state.startswith("Z") else Process(int(pid), int(parent), started)


def _send(pids: set[int], number: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _read_line() -> bytes:
    """Return one line, or its beginning at the end of the file."""
    line = b""
    while not line.endswith(b"\n") and (part := os.read(sys.stdin.fileno(), 1)):
        line += part
    return line


if __name__ == "__main__":
    sys.exit(main())
