"""An engine that answers when a test lets it."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

WAIT_S = 60.0  # only a guard against hanging
POLL_S = 0.02
MODELS = {"object": "list", "data": [{"id": "held", "object": "model", "created": 0, "owned_by": "test"}]}
EVENT = b'data: {"choices": [{"index": 0, "delta": {"content": "a"}}]}\n\n'


class HoldingEngine:
    """Answers requests that generate after :meth:`release`. A stream sends its first event before.

    Attributes:
        root: its URL.
        is_well: True if its ``/health`` is 200.
        received: paths of the POST requests, in order.
        num_left: number of requests whose client left while they were held.
    """

    def __init__(self, root: str) -> None:
        self.root = root
        self.is_well = True
        self.received: list[str] = []
        self.num_left = 0
        self._released = threading.Event()
        self._changed = threading.Condition()

    def release(self) -> None:
        """Answer all requests, from now on at once."""
        self._released.set()

    def note(self, path: str) -> None:
        """Record a request."""
        with self._changed:
            self.received.append(path)
            self._changed.notify_all()

    def wait_for(self, number: int) -> None:
        """Wait until ``number`` requests have been received."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.received) >= number, WAIT_S), self.received

    def wait_for_left(self, number: int) -> None:
        """Wait until the clients of ``number`` held requests have left."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.num_left >= number, WAIT_S), self.num_left

    def hold(self, connection: socket.socket) -> bool:
        """Wait for :meth:`release`. Return False if the client left first."""
        while not self._released.wait(POLL_S):
            if _has_left(connection):
                with self._changed:
                    self.num_left += 1
                    self._changed.notify_all()
                return False
        return True


def _has_left(connection: socket.socket) -> bool:
    try:
        return connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


@contextmanager
def holding_engine() -> Iterator[HoldingEngine]:
    """Yield a running engine."""
    with _Server(("127.0.0.1", 0), _Handler) as server:
        engine = server.engine = HoldingEngine(f"http://127.0.0.1:{server.server_address[1]}")
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield engine
        finally:
            engine.release()
            server.shutdown()
            thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    engine: HoldingEngine


class _Handler(BaseHTTPRequestHandler):
    server: Any

    def do_GET(self) -> None:
        engine: HoldingEngine = self.server.engine
        if self.path == "/health":
            self._send(200 if engine.is_well else 503, {})
        else:
            self._send(200 if self.path == "/v1/models" else 404, MODELS)

    def do_POST(self) -> None:
        engine: HoldingEngine = self.server.engine
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        engine.note(self.path)
        if body.get("stream"):
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.end_headers()
            self.wfile.write(EVENT)
            if engine.hold(self.connection):
                self.wfile.write(EVENT + b"data: [DONE]\n\n")
        elif engine.hold(self.connection):
            self._send(200, {"object": "chat.completion", "choices": []})

    def log_message(self, *_: Any) -> None:
        """Write nothing."""

    def _send(self, status: int, value: Any) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
