"""The report of ``agentspec run`` on calls that did not arrive."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from tests.commands.support.running import run
from tests.gateway.support.scripted import ScriptedEngine

ASK = """
import asyncio, openai, sys
url, way, model = sys.argv[1:]
options = {"api_key": "none", "max_retries": 0, "timeout": 30} | ({"base_url": url} if url else {})
asked = {"model": model, "messages": [{"role": "user", "content": "hi"}]}
async def ask():
    async with openai.AsyncOpenAI(**options) as client:
        await client.chat.completions.create(**asked)
try:
    if way == "async":
        asyncio.run(ask())
    else:
        with openai.OpenAI(**options) as client:
            client.chat.completions.create(**asked)
except openai.APIStatusError as error:
    print(error.status_code)
"""


@pytest.fixture
def other() -> Iterator[str]:
    """Yield the root URL of a server that is not a gateway and refuses every request."""

    class Other(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("content-length", 0)))
            self.send_response(418)
            self.send_header("content-length", "0")
            self.end_headers()

        def do_GET(self) -> None:
            self.do_POST()

        def log_message(self, *args: Any) -> None:
            """Log no requests."""

    with HTTPServer(("127.0.0.1", 0), Other) as server:
        answering = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        answering.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            answering.join()


@pytest.mark.parametrize("way", ["sync", "async"])
def test_a_base_url_in_the_code(url: str, other: str, engine: ScriptedEngine, way: str) -> None:
    done = run(url, sys.executable, "-c", ASK, f"{other}/v1", way, "scripted")
    assert (done.returncode, done.stdout, engine.requests) == (0, "418\n", [])
    assert done.stderr == (
        f"agentspec run: no call reached {url}; the program sent requests to {other}. If its code names a"
        f" base URL, remove that, or set it to {url}/v1\n"
    )


def test_calls_that_were_refused(url: str, engine: ScriptedEngine) -> None:
    done = run(url, sys.executable, "-c", ASK, "", "sync", "another-model")
    assert (done.stdout, engine.requests) == ("404\n", [])
    assert done.stderr.startswith(
        f"agentspec run: {url} answered no call, although the program sent requests"
    )


def test_no_call_at_all(url: str, engine: ScriptedEngine) -> None:
    (line,) = run(url, "true").stderr.splitlines()
    assert line.startswith(f"agentspec run: no call reached {url}. ")
    assert line.endswith(f"set the client's base URL to {url}/v1")


def test_calls_that_arrived_are_not_missed(url: str, other: str, engine: ScriptedEngine) -> None:
    code = f"import httpx; httpx.post({other!r}); import sys\n{ASK}"
    done = run(url, sys.executable, "-c", code, "", "sync", "scripted")
    assert len(engine.requests) == 1
    assert other not in done.stderr
    assert "reached" not in done.stderr
