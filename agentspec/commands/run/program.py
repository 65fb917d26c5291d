"""A child program that behaves as if run directly: same streams, terminal, signals and exit status."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from agentspec.commands.run.watchdog import HAS_ENDED

WATCHDOG = Path(__file__).with_name("watchdog.py")
FROM_TERMINAL = (signal.SIGINT, signal.SIGQUIT)
PASSED_ON = (*FROM_TERMINAL, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def run_program(argv: Sequence[str], environment: Mapping[str, str], run_id: str) -> int:
    """Run a program. Return its exit status, or -N if signal N ended it.

    If this process is killed, the program is ended as well.

    Args:
        argv: program and its arguments.
        environment: environment of the program, with ``run_id`` under ``AGENTSPEC_RUN``.
        run_id: unique id of the run.

    Raises:
        OSError: the program can't be run.
    """
    program: subprocess.Popen[bytes] | None = None
    early: list[int] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        if number in FROM_TERMINAL and _is_in_foreground():
            return  # the terminal has sent it to the program as well
        if program is None:
            early.append(number)
        else:
            program.send_signal(number)

    with _handled(pass_on), _watchdog(run_id) as write_watchdog:
        try:
            program = subprocess.Popen(argv, env=environment)
            write_watchdog(b"%d\n" % program.pid)
            for number in early:
                program.send_signal(number)
            return program.wait()
        finally:
            if program is None or program.returncode is not None:
                write_watchdog(HAS_ENDED)


@contextmanager
def _watchdog(run_id: str) -> Iterator[Callable[[bytes], None]]:
    """Yield a function that writes to the process that ends the program if this one can't."""
    its_end, our_end = os.pipe()  # only this process has our end: no program inherits it
    argv = [sys.executable, "-I", "-S", str(WATCHDOG), run_id, str(os.getsid(0))]
    quiet = subprocess.DEVNULL
    try:
        process = subprocess.Popen(
            argv, stdin=its_end, stdout=quiet, stderr=quiet, cwd="/", start_new_session=True
        )
    except BaseException:
        os.close(our_end)
        raise
    finally:
        os.close(its_end)

    def write(text: bytes) -> None:
        with suppress(BrokenPipeError):  # it was killed
            os.write(our_end, text)

    with process:
        try:
            yield write
        finally:
            os.close(our_end)


def end_as(status: int) -> int:
    """Return the exit status to end with. If a signal ended the program, end this process by that signal."""
    if status >= 0:
        return status
    number = -status
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    return 128 + number


@contextmanager
def _handled(handler: signal._HANDLER) -> Iterator[None]:
    """Handle the passed-on signals, except ignored ones: the program should ignore these, too."""
    before = {number: signal.getsignal(number) for number in PASSED_ON}
    ours = [number for number, old in before.items() if old is not signal.SIG_IGN]
    for number in ours:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, before[number])


def _is_in_foreground() -> bool:
    """Return True if our process group is in the terminal's foreground, which gets the typed signals."""
    try:
        terminal = os.open(os.ctermid(), os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)
