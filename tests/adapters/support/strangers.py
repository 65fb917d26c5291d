"""A local server that every host name resolves to, and the tags that it received."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from unittest.mock import patch

PUBLIC = "public.example.com"
CHOICE = {
    "index": 0,
    "message": {"role": "assistant", "content": "hi"},
    "text": "hi",
    "finish_reason": "stop",
}
ANSWER = {
    "id": "1",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [CHOICE],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
}
VARIABLES = ("AGENTSPEC_URL", "AGENTSPEC_HOSTS", "AGENTSPEC_DISABLE", "OPENAI_CUSTOM_HEADERS")


class Server(ThreadingHTTPServer):
    """A server that answers or redirects every request."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, dict[str, str]]] = []
        self.redirect: str | None = None
        super().__init__(("127.0.0.1", 0), Handler)

    def tags(self) -> list[tuple[str, dict[str, str]]]:
        """Return the requested host of each call and its headers that are tags."""
        tagging = ("x-agentspec-", "x-session-id", "baggage")
        return [
            (host, {name: value for name, value in headers.items() if name.startswith(tagging)})
            for host, headers in self.seen
        ]


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        host = self.headers["host"].partition(":")[0]
        self.server.seen.append((host, {name.lower(): value for name, value in self.headers.items()}))
        answer = json.dumps(ANSWER).encode()
        target, self.server.redirect = self.server.redirect, None
        self.send_response(307 if target else 200)
        if target:
            self.send_header("location", target)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(0 if target else len(answer)))
        self.end_headers()
        if not target:
            self.wfile.write(answer)

    def log_message(self, *args: Any) -> None:
        """Log no requests."""


@contextmanager
def serving_every_name() -> Iterator[Server]:
    """Resolve every name to this server, without a proxy."""
    look_up = socket.getaddrinfo

    def found(host: Any, *args: Any, **kwargs: Any) -> Any:
        return look_up("127.0.0.1", *args, **kwargs)

    environment = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    with patch.object(socket, "getaddrinfo", found), Server() as server:
        serving = threading.Thread(target=server.serve_forever, args=(0.01,))
        serving.start()
        with patch.dict(os.environ, {**environment, "NO_PROXY": "*"}, clear=True):
            yield server
        server.shutdown()
        serving.join()
