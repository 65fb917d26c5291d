"""A server that returns the same response to every POST."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.gateway.support.live import TIMEOUT_S


@dataclass(frozen=True)
class Seen:
    """One request. Header names are in lower case."""

    path: str
    headers: dict[str, str]


@contextmanager
def answering(status: int = 200, answer: object = None) -> Iterator[tuple[str, list[Seen]]]:
    """Yield the server's URL and the list of received requests. The response is ``answer`` as JSON."""
    seen: list[Seen] = []
    body = json.dumps(answer or {}).encode()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            seen.append(Seen(self.path, {name.lower(): value for name, value in self.headers.items()}))
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}", seen
        server.shutdown()
        thread.join(TIMEOUT_S)


IMPATIENT = {"retries": {"backoff_s": 0.001}}
