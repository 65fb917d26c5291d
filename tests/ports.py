"""Ports for tests that name one themselves."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def reserved_port() -> Iterator[int]:
    """A port on which nothing listens, and which the system gives to no other process meanwhile.

    A server of the test's own, which sets ``SO_REUSEADDR``, may listen on it.
    """
    with socket.socket() as bound:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(("127.0.0.1", 0))
        port: int = bound.getsockname()[1]
        if sys.platform != "linux":  # elsewhere a second socket can't be bound to it
            bound.close()
        yield port
