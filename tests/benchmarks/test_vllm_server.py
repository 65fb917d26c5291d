"""A server process: start, requests, measurements, stop with its subprocesses, and the error if it dies."""

from __future__ import annotations

import sys
from pathlib import Path

import httpx
import psutil
import pytest

from agentspec.errors import AgentSpecError, ConfigError
from benchmarks.vllm.chats import Chat
from benchmarks.vllm.client import ask_all
from benchmarks.vllm.server import Server

# a server with a child, as vLLM has them; it streams four tokens, and refuses the model "none"
SERVER = """
import json, subprocess, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)

class Handler(BaseHTTPRequestHandler):
    def say(self, status, text):
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text.encode())

    def do_GET(self):
        metrics = "# TYPE vllm:generation_tokens_total counter\\nvllm:generation_tokens_total 7\\n"
        self.say(200, {"/health": "", "/metrics": metrics}.get(self.path, '{"tree_bytes": 5}'))

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.path.startswith("/agentspec") or body["model"] == "none":
            return self.say(400, "no such thing")
        chunks = [
            {"prompt_token_ids": [1], "choices": [{"index": 0, "delta": {"content": "x"}, "token_ids": [i]}]}
            for i in range(4)
        ]
        chunks[-1]["choices"][0] |= {"finish_reason": "stop", "stop_reason": "!"}
        self.say(200, "".join(f"data: {json.dumps(one)}\\n\\n" for one in chunks) + "data: [DONE]\\n\\n")

    def log_message(self, *_):
        pass

ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def runs(number: int) -> bool:
    """Return False for a process that has ended, including a zombie."""
    try:
        return bool(psutil.Process(number).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def chat(name: str, model: str = "some") -> Chat:
    return Chat(name, "stage", {"model": model})


def test_a_server_from_start_to_stop(tmp_path: Path, free_port: int) -> None:
    port, log = free_port, tmp_path / "log"
    with Server.running([sys.executable, "-c", SERVER, str(port)], port, log) as server:
        child = int(log.read_text().split()[0])
        assert server.counters().num_output_tokens == 7
        assert server.control("status") == {"tree_bytes": 5}
        assert server.resident_bytes() > psutil.Process(child).memory_info().rss > 0
        assert server.cpu_s() > 0
        with pytest.raises(AgentSpecError, match="no such thing"):
            server.control("save", path="x")
        answers = ask_all(
            server.url, [chat("a"), chat("b")], 2, leaves=lambda one: 2 if one.name == "b" else None
        )
        assert answers[0].prompt_ids == [1]
        assert answers[0].choices[0].token_ids == [0, 1, 2, 3]
        assert (answers[0].choices[0].text, answers[0].choices[0].finish) == ("xxxx", ("stop", "!"))
        assert answers[1].choices[0].token_ids == [0, 1]
        with pytest.raises(ExceptionGroup) as refused:
            ask_all(server.url, [chat("c", "none")], 1)
        assert refused.group_contains(AgentSpecError, match=r"'c': 400 no such thing")
    assert not runs(child)
    with pytest.raises(httpx.TransportError):
        httpx.get(server.url)


def test_the_last_words_of_one_that_dies(tmp_path: Path, free_port: int) -> None:
    command = [sys.executable, "-c", "import sys; print('no such model'); sys.exit(3)"]
    with (
        pytest.raises(ConfigError, match=r"(?s)status 3.*no such model"),
        Server.running(command, free_port, tmp_path / "log"),
    ):
        pytest.fail("it was never healthy")
