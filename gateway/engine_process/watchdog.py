"""Runs a command for as long as somebody holds the other end of this process's standard input.

A script, which ``EngineChild`` starts as the leader of a process group of its own. Should the gateway die, of
whatever, its end of the pipe closes: the command is asked to end, then the whole group is killed, with the
processes that the command has started. Imports nothing but the standard library.

    python watchdog.py STOP_TIMEOUT_S COMMAND...
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress


def main() -> int:
    """Run the command; its exit status, 128 + N if signal N killed it."""
    stop_timeout_s, *command = sys.argv[1:]
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    let_go = threading.Event()
    threading.Thread(
        target=_end_when_let_go, args=(child, let_go, float(stop_timeout_s)), daemon=True
    ).start()
    status = child.wait()
    if let_go.is_set():
        _kill_group()
    return status if status >= 0 else 128 - status


def _end_when_let_go(child: subprocess.Popen[bytes], let_go: threading.Event, timeout_s: float) -> None:
    os.read(sys.stdin.fileno(), 1)  # nobody writes: it returns when the other end is closed
    let_go.set()
    child.terminate()
    with suppress(subprocess.TimeoutExpired):
        child.wait(timeout_s)
    _kill_group()


def _kill_group() -> None:
    os.killpg(0, signal.SIGKILL)  # this process is of the group


if __name__ == "__main__":
    sys.exit(main())
