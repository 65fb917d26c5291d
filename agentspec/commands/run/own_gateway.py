"""A gateway for the lifetime of one command: ``agentspec serve`` on a free port."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from agentspec.errors import EngineError

STOP_TIMEOUT_S = 20
READY = "serving "


@contextmanager
def own_gateway(options: Sequence[str]) -> Iterator[str]:
    """Yield its root URL. Its messages appear on our standard error. EngineError if it does not start."""
    watchdog_end, our_end = os.pipe()
    try:
        process = subprocess.Popen(
            _argv(options), stdin=watchdog_end, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
    except BaseException:
        os.close(our_end)
        raise
    finally:
        os.close(watchdog_end)
    with process:
        try:
            yield _root(process)
        finally:
            os.close(our_end)


def _argv(options: Sequence[str]) -> list[str]:
    """Return the parent watchdog's command line. The terminal's signals do not reach its session."""
    from agentspec.gateway.engine_process.child_process import WATCHDOG

    serve = (sys.executable, "-m", "agentspec", "serve", "--port", "0", "--log-level", "warning", *options)
    return [sys.executable, "-I", str(WATCHDOG), str(STOP_TIMEOUT_S), *serve]


def _root(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line.startswith(READY):
        raise EngineError("the gateway that --serve asked for did not start; it said why above")
    return line.split()[-1].removesuffix("/v1")
