"""An engine for tests: a real HTTP server in its own process, which starts a child process.

    python engine_server.py PORT FILE [WAY]

Every start appends a line to FILE: the process ids of the server and its child. A POST creates a file
"posted" next to FILE. Its response waits for a file "go" there. WAY is the server's behaviour:

- ``fails``: exits during start-up.
- ``stubborn``: does not exit on SIGTERM.
- ``silent``: stops responding after its first health check.
- ``slow``: starts only when there is a file "go" next to FILE.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


class Engine(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/health" and way == "silent" and answered:
            time.sleep(60)
        answered.append(self.path)
        self._answer({"/environment": os.environ.get("AGENTSPEC_TEST", "")}.get(self.path, "{}"))

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        starts.with_name("posted").touch()
        wait_for(starts.with_name("go"))
        self._answer("{}")

    def _answer(self, text: str) -> None:
        self.send_response(200)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *args: Any) -> None:
        pass


def wait_for(file: Path) -> None:
    while not file.exists():
        time.sleep(0.02)


def end(*_: Any) -> None:
    print("(Engine pid=1) INFO 11-22 03:09:53 [engine.py:7] asked to end", flush=True)
    if way != "stubborn":
        raise SystemExit(0)


if __name__ == "__main__":
    port, starts, way = int(sys.argv[1]), Path(sys.argv[2]), "".join(sys.argv[3:])
    answered: list[str] = []
    signal.signal(signal.SIGTERM, end)
    # a child that does not exit with its parent, inherits our output, and is not notified of the exit
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    with starts.open("a") as file:
        print(os.getpid(), child.pid, file=file, flush=True)
    print("WARNING 11-22 03:09:53 [engine.py:9] loading\rWARNING half\nno level", flush=True)
    if way == "fails":
        print("(Engine pid=1) ERROR 11-22 03:09:53 [engine.py:9] no such model", flush=True)
        raise SystemExit(3)
    if way == "slow":
        wait_for(starts.with_name("go"))
    ThreadingHTTPServer(("127.0.0.1", port), Engine).serve_forever()
