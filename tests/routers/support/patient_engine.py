"""An HTTP server that streams one event, and the others only after the client has got the first."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import chain
from typing import Any

TIMEOUT_S = 60.0
INTERVAL_S = 0.05
MODEL = "agentspec-sql"


class PatientEngine:
    """The server's side of a streamed answer of two words.

    Attributes:
        got_first: set by the test when the client has the first word.
        waited_in_vain: True if the client did not get it in time.
        bodies: the requests that it received.
        was_left: set when the connection of an endless answer is broken.

    Args:
        is_endless: send the second word again and again, until the connection is broken.
    """

    def __init__(self, url: str, *, is_endless: bool) -> None:
        self.url = url
        self.was_left = threading.Event()
        self._is_endless = is_endless
        self.got_first = threading.Event()
        self.waited_in_vain = False
        self.bodies: list[dict[str, Any]] = []

    def events(self) -> Iterator[bytes]:
        """Yield the events of the stream."""
        yield event("first")
        self.waited_in_vain = not self.got_first.wait(TIMEOUT_S)
        yield event(" second")
        deadline_s = time.monotonic() + TIMEOUT_S
        while self._is_endless and time.monotonic() < deadline_s:
            time.sleep(INTERVAL_S)
            yield event(" second")
        yield b"data: [DONE]\n\n"


def event(text: str) -> bytes:
    """Return one event of a streamed chat completion."""
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
    chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": MODEL, "choices": [choice]}
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


@contextmanager
def patient_engine(*, is_endless: bool = False) -> Iterator[PatientEngine]:
    """Yield a running server, which answers probes and the list of models too."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            models = {"object": "list", "data": [{"id": MODEL, "object": "model", "owned_by": "agentspec"}]}
            found = {"/health": {}, "/v1/models": models}.get(self.path)
            body = json.dumps(found or {}).encode()
            self.send_response(200 if found is not None else 404)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            engine.bodies.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            try:
                for part in chain(engine.events(), (b"",)):
                    self.wfile.write(b"%x\r\n%b\r\n" % (len(part), part))
            except ConnectionError:
                engine.was_left.set()
                self.close_connection = True

        def log_message(self, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        engine = PatientEngine(f"http://127.0.0.1:{server.server_address[1]}", is_endless=is_endless)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield engine
        server.shutdown()
        thread.join(TIMEOUT_S)
