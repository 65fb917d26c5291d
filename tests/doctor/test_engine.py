"""Engine checks against real servers that misbehave."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from agentspec import __version__
from agentspec.doctor.finding import Finding, Level
from agentspec.doctor.servers import check_engine
from agentspec.errors import ConfigError
from agentspec.gateway import UpstreamSettings

MODELS = {"data": [{"id": "tiny"}]}
STATUS = {"agentspec": __version__, "vllm": "0.32.0", "num_speculative_tokens": 32}
GOOD: dict[str, Any] = {
    "/v1/models": (200, MODELS),
    "/agentspec/status": (200, STATUS),
    "/v1/completions": (200, {}),
}


@contextmanager
def engine(**answers: Any) -> Iterator[str]:
    """Yield the URL of a server with these answers: status and JSON by path."""

    class Engine(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = answers.get(self.path, (404, {"detail": "Not Found"}))
            raw = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            assert body["vllm_xargs"]["agentspec_learn"] == 0
            self.do_GET()

        def log_message(self, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Engine) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def findings(answers: dict[str, Any]) -> list[Finding]:
    with engine(**answers) as url:
        return list(check_engine(UpstreamSettings(url=url)))


def test_all_is_well() -> None:
    found = findings(GOOD)
    assert [one.level for one in found] == [Level.OK] * 3
    assert "serves tiny" in found[0].text


@pytest.mark.parametrize(
    ("path", "answer", "level", "said"),
    [
        ("/v1/models", (404, {}), Level.PROBLEM, "is it vLLM?"),
        ("/v1/models", (200, {"data": []}), Level.PROBLEM, "lists no model"),
        ("/v1/models", (200, "hello"), Level.PROBLEM, "lists no model"),
        ("/v1/models", (401, {}), Level.PROBLEM, "AGENTSPEC_ENGINE_API_KEY"),
        ("/agentspec/status", (404, {}), Level.PROBLEM, "has no AgentSpec plugin"),
        ("/agentspec/status", (200, {"hello": 1}), Level.PROBLEM, "has no AgentSpec plugin"),
        ("/agentspec/status", (403, {}), Level.PROBLEM, "--control-token"),
        (
            "/agentspec/status",
            (200, {**STATUS, "agentspec": "0.0.1"}),
            Level.WARNING,
            "AgentSpec 0.0.1 there",
        ),
        ("/v1/completions", (400, {"error": "extra fields"}), Level.PROBLEM, "extra fields"),
    ],
)
def test_what_is_not(path: str, answer: tuple[int, Any], level: Level, said: str) -> None:
    bad = [found for found in findings({**GOOD, path: answer}) if found.level is not Level.OK]
    assert [found.level for found in bad] == [level]
    assert said in bad[0].text


def test_nobody_there() -> None:
    with engine() as url:
        pass
    [found] = check_engine(UpstreamSettings(url=url))
    assert found.level is Level.PROBLEM
    assert f"{url} can't be reached" in found.text


def test_what_is_no_url() -> None:
    with pytest.raises(ConfigError, match="'gpu-box'"):
        list(check_engine(UpstreamSettings.at("gpu-box")))
