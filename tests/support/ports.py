"""Ports for tests that need a fixed port."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def reserved_port() -> Iterator[int]:
    """Yield a port on which no process listens, reserved against use by other processes.

    A test's own server may listen on it if it sets ``SO_REUSEADDR``.
    """
    with socket.socket() as bound:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(("127.0.0.1", 0))
        port: int = bound.getsockname()[1]
        if sys.platform != "linux":  # elsewhere a second socket can't be bound to it
            bound.close()
        yield port
