"""The ``agentspec`` command, run as a process: in front of a small test server, then with torch."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

import agentspec
from agentspec.adapters.openai import agentspec_headers
from agentspec.cli import main
from agentspec.commands.option_types import flag_of
from agentspec.serve_settings import EngineSettings
from tests.support.serving import TIMEOUT_S, finish, serving


class EndlessAnswers(BaseHTTPRequestHandler):
    """A server that streams dots until the client disconnects."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        try:
            while not stopping.wait(0.02):
                self.wfile.write(b'data: {"dot": "."}\n\n')
        except OSError:
            hung_up.set()
        self.close_connection = True

    def log_message(self, *args: Any) -> None:
        pass


stopping, hung_up = threading.Event(), threading.Event()


@pytest.fixture(scope="module")
def engine_url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), EndlessAnswers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        stopping.set()
        server.shutdown()
        thread.join()


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    for option, expected in (("--version", agentspec.__version__), ("--help", "serve")):
        with pytest.raises(SystemExit) as caught:
            main([option])
        assert caught.value.code == 0
        assert expected in capsys.readouterr().out


@pytest.mark.parametrize(("flag", "most"), [("--help", 18), ("--help-all", 60)])
def test_the_help_of_serve_shows_few_flags_and_the_long_one_every_setting(
    flag: str, most: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["serve", flag])
    shown = capsys.readouterr().out
    usage = shown.partition("\n\n")[0]
    assert usage.count(" [-") <= most
    for setting in ("host", "model", "engine_url", *(EngineSettings.model_fields if most > 18 else ())):
        assert (flag_of(setting) in usage) is (setting != "arguments")
    assert "examples:" in shown
    assert "X-AgentSpec-Stage" in shown


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["fly"],
        ["serve", "--grace-s", "0"],
        ["serve", "--draft", "wide"],
        ["serve", "--port", "65536"],
        ["serve", "--price", "2"],
        ["serve", "--device", "abacus"],
        ["serve", "--max-num-seqs", "8"],  # an option of vLLM, which does not serve the bundled model
        ["replay", "calls.jsonl", "--max-num-seqs", "8"],
    ],
)
def test_a_wrong_command_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "usage: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--host", "0.0.0.0"], "--allow-open"),
        (["--host", "example.org"], "--allow-open"),
        (["--engine-url", "gpu-box"], "'gpu-box'"),
        (["--allow-open", "--host", "a..b"], "can't listen on a..b:8000"),
        (["--api-key", "a=x", "--api-key", "a=y"], "two tenants"),
        (["--zero-hop"], "--zero-hop is not for the embedded one, which serves because no --model was given"),
        (["--engine", "vllm", "--slots", "4"], "--slots is not for vLLM, which serves because --engine vllm"),
        (["--engine", "vllm", "--kv-cache-mb", "4"], "--kv-cache-mb is not for vLLM"),
        (["--engine-url", "http://gpu-box", "--rule", "paper"], "--rule is not for a running one"),
        (["--control-token", "s3cret"], "--control-token is not for the embedded one"),
        (["--engine", "torch", "--dtype", "half"], "dtype must be one of"),
    ],
)
def test_settings_that_cannot_be(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", *arguments]) == 1
    errors = capsys.readouterr().err
    assert errors.startswith("agentspec: error: ")
    assert said in errors


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_loopback_needs_no_key(host: str) -> None:
    assert main(["serve", "--host", host, "--engine-url", "no-url"]) == 1  # it reached the engine


def test_a_port_in_use(engine_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    port = engine_url.rpartition(":")[2]
    assert main(["serve", "--port", port, "--engine-url", engine_url]) == 1
    assert f"can't listen on 127.0.0.1:{port}: Address already in use" in capsys.readouterr().err


def test_the_log_begins_with_the_engine_and_why(engine_url: str) -> None:
    with serving("--engine-url", engine_url) as (process, _):
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=TIMEOUT_S)
    first, second, *_ = errors.splitlines()
    assert first.endswith("INFO the engine is a running one, because --engine-url was given")
    assert f"INFO the engine at {engine_url} has no AgentSpec plugin: " in second


def test_without_torch_the_embedded_engine_says_what_to_install() -> None:
    code = "import sys; sys.modules['torch'] = None; import agentspec.__main__"
    run = subprocess.run(
        [sys.executable, "-c", code, "serve", "--port", "0"],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert run.returncode == 1
    assert "pip install 'agentspec-serving[engine]'" in run.stderr
    assert "Traceback" not in run.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_idle_server_stops_quietly(engine_url: str, number: signal.Signals) -> None:
    with serving("--engine-url", engine_url) as (process, base_url):
        assert httpx.get(base_url.replace("/v1", "/health")).status_code == 503  # the test engine has no GET
        assert finish(process, number) == (0, "")


def assert_one_answer_broke_off(process: subprocess.Popen[str]) -> None:
    """Check that one answer broke off, with one message on stderr."""
    status, said = finish(process)
    assert (status, said.count("\n")) == (0, 1)
    assert "an answer broke off: the server is shutting down" in said


def test_a_stream_under_way_is_ended_and_the_engine_freed(engine_url: str) -> None:
    hung_up.clear()
    with serving("--engine-url", engine_url, "--grace-s", "0.2") as (process, base_url):
        with httpx.stream("POST", f"{base_url}/chat/completions", json={"stream": True}) as answer:
            parts = answer.iter_text()
            assert "dot" in next(parts)
            process.send_signal(signal.SIGTERM)
            rest = "".join(parts)
        assert '"code":"shutting_down"' in rest.rstrip().rpartition("\n")[2]
        assert_one_answer_broke_off(process)
    assert hung_up.wait(TIMEOUT_S)


def until_it_takes_no_more(base_url: str) -> None:
    """Wait until the server refuses connections."""
    while True:
        try:
            httpx.get(f"{base_url}/nothing", headers={"connection": "close"})
        except httpx.TransportError:
            return


def test_a_second_signal_ends_the_grace_period(engine_url: str) -> None:
    with serving("--engine-url", engine_url, "--grace-s", "600") as (process, base_url):
        with httpx.stream("POST", f"{base_url}/chat/completions", json={"stream": True}) as answer:
            parts = answer.iter_text()
            assert "dot" in next(parts)
            process.send_signal(signal.SIGINT)
            until_it_takes_no_more(base_url)  # two simultaneous signals count as one
            assert "dot" in next(parts)
            process.send_signal(signal.SIGINT)
            assert "shutting_down" in "".join(parts)
        assert_one_answer_broke_off(process)


def test_keys_come_from_the_command_line_and_from_the_environment(
    engine_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTSPEC_API_KEYS", "k2=acme, k3")
    with serving("--engine-url", engine_url, "--api-key", "k1") as (_, base_url):
        for key, status in (("k1", 501), ("k2", 501), ("k3", 501), ("k4", 401)):
            answer = httpx.get(f"{base_url}/models", headers={"authorization": f"Bearer {key}"})
            assert answer.status_code == status


def test_a_device_that_is_not_there(llama_checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--port", "0", "--model", str(llama_checkpoint), "--device", "cuda:99"]) == 1
    errors = capsys.readouterr().err
    assert errors.startswith("agentspec: error: the engine can't start on device 'cuda:99': ")
    assert errors.count("\n") == 1


@pytest.mark.parametrize("draft", ["chain", "off"])
def test_the_embedded_engine_end_to_end(llama_checkpoint: Path, draft: str) -> None:
    options = [
        "--model",
        str(llama_checkpoint),
        "--served-model-name",
        "tiny",
        "--draft",
        draft,
        "--threads",
        "1",
        *(("--price", "0.2") if draft != "off" else ()),  # not measured on this machine
    ]
    with serving(*options) as (process, base_url), openai.OpenAI(base_url=base_url, api_key="none") as client:
        answers = [
            client.chat.completions.create(
                model="tiny",
                messages=[{"role": "user", "content": "SELECT name, price FROM items"}],
                temperature=0,
                max_tokens=48,
                extra_body={"ignore_eos": True},
                extra_headers=agentspec_headers("flow/write", "run-1", max_draft=max_draft),
            )
            for max_draft in (0, 16, 16)
        ]
        metrics = httpx.get(base_url.replace("/v1", "/metrics")).text
        assert finish(process, signal.SIGTERM) == (0, "")
    assert len({answer.choices[0].message.content for answer in answers}) == 1
    accepted = [
        answer.to_dict()["metrics"]["speculative_decoding"]["num_accepted_draft_tokens"] for answer in answers
    ]
    assert accepted[0] == 0
    assert (accepted[2] > 0) is (draft != "off")
    assert (
        f'agentspec_accepted_tokens_total{{stage="flow/write",tenant="default"}} {sum(accepted)}.0' in metrics
    )


def test_a_damaged_forest_file_is_moved_aside_unless_it_is_to_be_strict(
    llama_checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    forest = tmp_path / "forest"
    forest.write_bytes(b"AgentSpec forest")  # truncated
    options = ["--model", str(llama_checkpoint), "--engine", "torch", "--forest-file", str(forest)]
    assert main(["serve", "--port", "0", *options, "--strict-forest"]) == 1
    assert "is no whole forest file, it is cut off" in capsys.readouterr().err
    with serving(*options) as (process, _):
        status, log = finish(process, signal.SIGTERM)
    [aside] = tmp_path.glob("forest.damaged-*")
    assert (status, log.count("\n")) == (0, 1)
    assert f"nothing was loaded from {forest}: " in log
    assert str(aside) in log
    assert not forest.exists()  # nothing was learned
    assert aside.read_bytes() == b"AgentSpec forest"


def test_the_embedded_engine_remembers_what_it_learned(llama_checkpoint: Path, tmp_path: Path) -> None:
    accepted = []
    for _ in range(2):
        options = ["--model", str(llama_checkpoint), "--engine", "torch", "--threads", "1", "--price", "0.2"]
        with serving(*options, "--forest-file", str(tmp_path / "forest")) as (process, base_url):
            body = {"prompt": "SELECT", "max_tokens": 32, "temperature": 0, "ignore_eos": True}
            answer = httpx.post(f"{base_url}/completions", json=body, timeout=TIMEOUT_S).json()
            accepted.append(answer["metrics"]["speculative_decoding"]["num_accepted_draft_tokens"])
            assert finish(process, signal.SIGTERM) == (0, "")
    assert accepted[1] > accepted[0]
