"""A proxy that lets nobody out and records which servers a program asks it for."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Trap(socketserver.ThreadingTCPServer):
    """Answers every request with status 403."""

    daemon_threads = True

    def __init__(self) -> None:
        self.asked: list[str] = []  # "CONNECT api.openai.com:443"
        super().__init__(("127.0.0.1", 0), _Refusal)

    @property
    def environment(self) -> dict[str, str]:
        """The variables that send all requests of a program here, except to the hosts of $NO_PROXY."""
        url = f"http://127.0.0.1:{self.server_address[1]}"
        return dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy"), url)


class _Refusal(socketserver.StreamRequestHandler):
    server: Trap

    def handle(self) -> None:
        line = self.rfile.readline().decode("latin-1")
        self.server.asked.append(" ".join(line.split()[:2]))
        self.wfile.write(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")


@contextmanager
def trap() -> Iterator[Trap]:
    """Run a trap for the length of the block."""
    with Trap() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
