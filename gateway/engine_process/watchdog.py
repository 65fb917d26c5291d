"""Parent watchdog: runs a command while another process holds the other end of standard input.

``EngineSubprocess`` starts this script as the leader of its own process group. If the gateway dies, for any
reason, its end of the pipe closes. The command is then asked to end, and the whole group is killed, including
processes that the command has started. Imports only the standard library.

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
    """Run the command and return its exit status, 128 + N if signal N killed it."""
    stop_timeout_s, *command = sys.argv[1:]
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    must_stop = threading.Event()
    threading.Thread(
        target=_stop_when_asked, args=(child, must_stop, float(stop_timeout_s)), daemon=True
    ).start()
    status = child.wait()
    if must_stop.is_set():
        _kill_group()
    return status if status >= 0 else 128 - status


def _stop_when_asked(child: subprocess.Popen[bytes], must_stop: threading.Event, timeout_s: float) -> None:
    os.read(sys.stdin.fileno(), 1)  # the other end never writes: this returns when it is closed
    must_stop.set()
    child.terminate()
    with suppress(subprocess.TimeoutExpired):
        child.wait(timeout_s)
    _kill_group()


def _kill_group() -> None:
    os.killpg(0, signal.SIGKILL)  # this process belongs to the group


if __name__ == "__main__":
    sys.exit(main())
