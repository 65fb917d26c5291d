"""Tests of ``agentspec run`` as a process, with real programs and a real gateway."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
import venv
from pathlib import Path
from typing import Any

import pytest

import agentspec.adapters
from agentspec.commands.run.environment import STARTUP, Run, run_environment
from agentspec.commands.run.figures import gained, shown, summed, time_saved
from tests.adapters.support.strangers import serving_every_name
from tests.commands.support.running import TIMEOUT_S, command, run
from tests.gateway.support.live import serving_engine
from tests.gateway.support.scripted import ScriptedEngine

ASK = """
import os, sys, openai
with openai.OpenAI(max_retries=0, timeout=30) as client:
    for _ in range(int(sys.argv[1]) if len(sys.argv) > 1 else 1):
        client.chat.completions.create(model="scripted", messages=[{"role": "user", "content": "hi"}])
"""
STAGED = """
from agentspec.adapters.openai import stage
import asyncio, openai
ASKED = {"model": "scripted", "messages": [{"role": "user", "content": "hi"}]}
async def ask():
    async with openai.AsyncOpenAI(max_retries=0, timeout=30) as client:
        with stage("plan", session="mine"):
            await client.chat.completions.create(**ASKED)
        with stage("write"):
            await client.chat.completions.create(**ASKED)
asyncio.run(ask())
"""
FIGURES = {
    "num_requests": 2,
    "num_prompt_tokens": 20,
    "num_output_tokens": 30,
    "num_steps": 10,
    "num_draft_tokens": 40,
    "num_accepted_tokens": 20,
    "decode_s": 1.0,
    "measured_decode_s": 1.0,
    "plain_decode_s": 3.0,
}


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "asking.py"
    path.write_text(ASK)
    return path


# requests of the program


def test_untagged_calls_come_to_the_gateway(url: str, engine: ScriptedEngine, program: Path) -> None:
    done = run(url, sys.executable, program, 3)
    assert (done.returncode, done.stdout) == (0, "")
    assert len(engine.requests) == 3
    (session,) = {request.tags.session for request in engine.requests}
    assert re.fullmatch("run-[0-9a-f]{16}", session or "")
    assert {request.tags.stage.name for request in engine.requests} == {"default"}


def test_a_workflow_goes_before_all_of_them(url: str, engine: ScriptedEngine, program: Path) -> None:
    program.write_text(STAGED + ASK)
    assert run(url, sys.executable, program, options=["--workflow", "my flow"]).returncode == 0
    assert [request.tags.stage.name for request in engine.requests] == [
        "my flow/plan",
        "my flow/write",
        "my flow",
    ]
    mine, run_session, again = (request.tags.session for request in engine.requests)
    assert (mine, run_session == again, (run_session or "").startswith("run-")) == ("mine", True, True)


@pytest.mark.parametrize("way", ["module", "child", "pytest", "script"])
def test_however_python_is_started(url: str, engine: ScriptedEngine, tmp_path: Path, way: str) -> None:
    (tmp_path / "asking.py").write_text(STAGED)
    (tmp_path / "test_asking.py").write_text("def test_it():\n    import asking\n")
    (tmp_path / "script").write_text(f"#!{sys.executable}\nimport asking\n")
    (tmp_path / "script").chmod(0o755)
    child = "import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', 'import asking']))"
    arguments = {
        "module": [sys.executable, "-m", "asking"],
        "child": [sys.executable, "-c", child],
        "pytest": [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_asking.py"],
        "script": ["./script"],
    }[way]
    done = subprocess.run(
        command(url, *arguments, options=["--workflow", "flow"]),
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert [request.tags.stage.name for request in engine.requests] == ["flow/plan", "flow/write"]


def test_what_is_no_python_gets_the_environment(url: str, engine: ScriptedEngine) -> None:
    shown = 'echo "$OPENAI_BASE_URL $ANTHROPIC_BASE_URL $OPENAI_API_KEY"; cat'
    done = run(url, "sh", "-c", shown, stdin="in", AGENTSPEC_SESSION="s")
    assert done.stdout == f"{url}/sessions/s/v1 {url}/sessions/s none\nin"


# Python's startup


def test_the_sitecustomize_behind_ours_is_imported(url: str, engine: ScriptedEngine, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.theirs = __name__, __file__\n")
    code = f"import sys; print(*sys.theirs, {str(STARTUP)!r} in sys.path)\n{STAGED}"
    done = run(url, sys.executable, "-c", code, PYTHONPATH=str(tmp_path))
    assert done.stdout == f"sitecustomize {tmp_path / 'sitecustomize.py'} False\n"
    assert [request.tags.stage.name for request in engine.requests] == ["plan", "write"]


def test_an_adapter_that_fails_is_told_once_and_harms_nobody(
    url: str, engine: ScriptedEngine, tmp_path: Path
) -> None:
    (tmp_path / "smolagents.py").write_text("class MultiStepAgent: pass\n")
    (tmp_path / "crewai.py").write_text("class NotTheFramework: pass\n")
    code = "import crewai, smolagents, subprocess, sys\n" + ASK
    child = f"import subprocess, sys\nimport smolagents\nsubprocess.call([sys.executable, '-c', {code!r}])"
    done = run(url, sys.executable, "-c", child, PYTHONPATH=str(tmp_path))
    assert len(engine.requests) == 1
    assert done.stderr.count("no adapter for smolagents: ") == 1
    assert "crewai" not in done.stderr


def test_a_python_without_agentspec_has_the_environment_alone(
    url: str, engine: ScriptedEngine, tmp_path: Path
) -> None:
    venv.create(tmp_path / "venv", with_pip=False)
    (tmp_path / "openai.py").write_text("import os\nclass OpenAI: url = os.environ['OPENAI_BASE_URL']\n")
    python = tmp_path / "venv" / "bin" / "python"
    done = run(url, python, "-c", "import openai; print(openai.OpenAI.url)", PYTHONPATH=str(tmp_path))
    assert re.fullmatch(f"{url}/sessions/run-[0-9a-f]+/v1\n", done.stdout)
    said = f"AgentSpec is not installed for {python}; the gateway has to find the stages of its calls"
    assert done.stderr.splitlines()[0] == f"agentspec run: {said}"
    assert "not installed" not in run(url, python, "-c", "pass").stderr


def test_every_adapter_that_can_instrument_is_waited_for() -> None:
    adapters = Path(agentspec.adapters.__file__).parent
    names: dict[str, Any] = {"__name__": "read", "__file__": str(STARTUP / "sitecustomize.py")}
    exec((STARTUP / "sitecustomize.py").read_text(), names)
    waited_for = {adapter for _, adapter in names["FRAMEWORKS"].values()}
    able = {path.stem for path in adapters.glob("*.py") if "\ninstrument = " in path.read_text()}
    assert able
    assert able <= waited_for
    assert [path.name for path in STARTUP.glob("*.py")] == ["sitecustomize.py"]  # the folder is on sys.path


# sessions of the calls


SESSION = """
import os, subprocess, sys
print(os.environ.get("AGENTSPEC_SESSION"), flush=True)
if sys.argv[1:]:
    subprocess.run([sys.executable, "-c", sys.argv[1]])
"""


@pytest.mark.parametrize("given", [None, "my run"])
def test_what_the_program_starts_is_one_session(
    url: str, engine: ScriptedEngine, program: Path, given: str | None
) -> None:
    """Frameworks in the program itself get sessions of their own, unless the user named a session."""
    named = {"AGENTSPEC_SESSION": given} if given else {}
    own = run(url, sys.executable, "-c", SESSION, SESSION, **named).stdout.splitlines()
    code = f'"{sys.executable}" -c "$1"; "{sys.executable}" -c "$1"; "{sys.executable}" "$2"'
    both = run(url, "sh", "-c", code, "sh", SESSION, program, **named).stdout.splitlines()
    sent = engine.last.tags.session
    if given is not None:
        assert (set(own), set(both), sent) == ({given}, {given}, "my%20run")
        return
    assert own[0] == "None"
    assert re.fullmatch("run-[0-9a-f]{16}", own[1])
    assert both == [sent, sent]


def test_a_session_that_fits_no_header_is_refused(url: str, engine: ScriptedEngine) -> None:
    done = run(url, "true", AGENTSPEC_SESSION="s" * 300)
    assert (done.returncode, "$AGENTSPEC_SESSION must have 1 to " in done.stderr) == (1, True)
    done = run(url, "true", AGENTSPEC_SESSION="..")
    assert (done.returncode, "$AGENTSPEC_SESSION is '..'" in done.stderr) == (1, True)


# environment variables


def test_what_somebody_set_is_replaced_only_if_it_is_said() -> None:
    given = {
        "OPENAI_BASE_URL": "https://api.example.com/v1",
        "OPENAI_API_KEY": "secret",
        "ANTHROPIC_AUTH_TOKEN": "secret",
        "PYTHONPATH": "/mine",
    }
    environment, replaced = run_environment(Run("http://g", None, "run-1"), given)
    assert replaced == ["OPENAI_BASE_URL"]
    assert environment["OPENAI_BASE_URL"] == environment["OPENAI_API_BASE"] == "http://g/sessions/run-1/v1"
    assert environment["ANTHROPIC_BASE_URL"] == "http://g/sessions/run-1"
    assert (environment["OPENAI_API_KEY"], environment["LLM_API_KEY"]) == ("secret", "none")
    assert "ANTHROPIC_API_KEY" not in environment
    assert environment["PYTHONPATH"] == f"{STARTUP}{os.pathsep}/mine"
    environment, replaced = run_environment(Run("http://g", "key", "run-1"), given)
    assert replaced == ["OPENAI_BASE_URL", "OPENAI_API_KEY", "ANTHROPIC_AUTH_TOKEN"]
    assert environment["OPENAI_API_KEY"] == environment["ANTHROPIC_API_KEY"] == "key"
    assert environment["ANTHROPIC_AUTH_TOKEN"] == "key"  # a client that sends both prefers this one


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, None),
        ({"HTTP_PROXY": ""}, None),
        ({"HTTP_PROXY": "http://p:1"}, "g"),
        ({"all_proxy": "http://p:1", "NO_PROXY": "a,b"}, "a,b,g"),
        ({"https_proxy": "http://p:1", "no_proxy": "a", "NO_PROXY": "b"}, "a,g"),
    ],
)
def test_no_proxy_stands_before_the_gateway(given: dict[str, str], expected: str | None) -> None:
    environment, _ = run_environment(Run("http://g:80", None, "run-1"), given)
    assert (environment.get("no_proxy"), environment.get("NO_PROXY")) == (expected, expected)


@pytest.mark.parametrize("named", [None, "my flow"])
def test_the_base_urls_carry_the_tags(named: str | None) -> None:
    given = {"OPENAI_CUSTOM_HEADERS": "a: b", "OPENAI_BASE_URL": "http://g/v1"}
    environment, replaced = run_environment(Run("http://g", None, "run-1", named), given)
    root = "http://g/sessions/run-1" + ("/workflows/my%20flow" if named else "")
    for name in ("OPENAI_BASE_URL", "OPENAI_API_BASE", "LLM_BASE_URL"):
        assert environment[name] == f"{root}/v1"
    assert environment["ANTHROPIC_BASE_URL"] == environment["ANTHROPIC_API_BASE"] == root
    assert environment["AGENTSPEC_URL"] == "http://g"
    assert replaced == []  # the address of the same gateway
    assert {name for name in environment if "HEADERS" in name} == {"OPENAI_CUSTOM_HEADERS"}
    environment, _ = run_environment(Run("http://g", None, "run-1", named), {"AGENTSPEC_DISABLE": "1"})
    assert environment["OPENAI_BASE_URL"] == "http://g/v1"


RAW_CALLS = """
import json, os, urllib.request
import httpx
url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
body = {"model": "scripted", "messages": [{"role": "user", "content": "hi"}]}
httpx.post(url, json=body, timeout=30).raise_for_status()
headers = {"content-type": "application/json"}
urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers), timeout=30).read()
"""


def test_clients_that_nobody_instruments_have_workflow_and_session(url: str, engine: ScriptedEngine) -> None:
    curl = 'python -c "$1"; exec python -I -c "$1"'  # -I: without the sitecustomize
    done = run(
        url,
        *("sh", "-c", curl.replace("python", f'"{sys.executable}"'), "sh", RAW_CALLS),
        options=["--workflow", "flow"],
        AGENTSPEC_SESSION="nightly run",
    )
    assert done.returncode == 0, done.stderr
    tags = [(request.tags.stage.name, request.tags.session) for request in engine.requests]
    assert tags == [("flow", "nightly%20run")] * 4


RESOLVER = """
import socket
look_up = socket.getaddrinfo
socket.getaddrinfo = lambda host, *args, **kwargs: look_up("127.0.0.1", *args, **kwargs)
"""
KEYS = """
import openai
with openai.OpenAI(base_url="http://public.example.com:%d/v1", max_retries=0) as client:
    client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
with openai.OpenAI(max_retries=0) as client:
    client.chat.completions.create(model="scripted", messages=[{"role": "user", "content": "hi"}])
"""


def test_the_key_of_the_gateway_goes_to_no_stranger(url: str, engine: ScriptedEngine) -> None:
    """The program's own resolver sends every name to a server of this test."""
    with serving_every_name() as stranger:
        code = f"{RESOLVER}\n{KEYS % stranger.server_port}"
        done = run(url, sys.executable, "-c", code, options=["--key", "secret-of-the-gateway"])
    assert done.returncode == 0, done.stderr
    [(host, headers)] = stranger.seen
    assert (host, "authorization" in headers) == ("public.example.com", False)
    assert len(engine.requests) == 1


def test_the_agents_sdk_has_no_key_to_export_traces_with() -> None:
    """With a key of ours the SDK would send all prompts to OpenAI."""
    switched_off = {"OPENAI_AGENTS_DISABLE_TRACING": "1", "AGENTSPEC_RUN_UNTRACED": "1"}
    theirs = {"OPENAI_AGENTS_DISABLE_TRACING": "true"}
    for key, given, expected in [
        (None, {}, switched_off),
        ("of the gateway", {"OPENAI_API_KEY": "the user's"}, switched_off),
        ("of the gateway", theirs, theirs),
        (None, {"OPENAI_API_KEY": "the user's"}, {}),  # their own door stays theirs
    ]:
        environment, _ = run_environment(Run("http://g", key, "run-1"), given)
        assert {name: environment[name] for name in switched_off if name in environment} == expected


# exit statuses and signals


@pytest.mark.parametrize("status", [3])
def test_its_status_is_the_programs(url: str, engine: ScriptedEngine, status: int) -> None:
    assert run(url, sys.executable, "-c", f"raise SystemExit({status})").returncode == status


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_what_ends_by_a_signal_ends_us_by_it(
    url: str, engine: ScriptedEngine, number: signal.Signals
) -> None:
    assert run(url, "sh", "-c", f"kill -{number} $$").returncode == -number


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_are_passed_on(url: str, engine: ScriptedEngine, number: signal.Signals) -> None:
    code = (
        f"import signal, sys; signal.signal({number}, lambda *_: sys.exit(5))\n"
        "print('ready', flush=True); signal.pause()"
    )
    with subprocess.Popen(
        command(url, sys.executable, "-c", code), stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        try:
            assert process.wait(TIMEOUT_S) == 5
        finally:
            process.kill()


def test_at_a_terminal_the_program_is_interrupted_once(url: str, engine: ScriptedEngine) -> None:
    code = (
        "import os, select, signal, sys; seen = []\n"
        "signal.signal(2, lambda *_: (seen.append(2), os.write(1, b'int\\n')))\n"
        "print('ready', sys.stdin.isatty(), flush=True)\n"
        "while not select.select([0], [], [], 0.1)[0]: pass\n"  # input() may keep the handler waiting
        "input(); print('seen', len(seen))"
    )
    child, terminal = pty.fork()
    if child == 0:
        argv = command(url, sys.executable, "-c", code)
        os.execv(argv[0], argv)
    shown = read_until(terminal, b"ready True")
    os.write(terminal, b"\x03")
    shown += read_until(terminal, b"int\r\n")
    os.write(terminal, b"\n")
    shown += read_until(terminal, b"seen 1")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    os.close(terminal)
    assert shown.count(b"int\r\n") == 1


def read_until(terminal: int, wanted: bytes) -> bytes:
    shown, until_s = b"", time.monotonic() + TIMEOUT_S
    while wanted not in shown:
        left_s = max(0.0, until_s - time.monotonic())
        assert select.select([terminal], [], [], left_s)[0], shown
        shown += os.read(terminal, 4096)
    return shown


# the report


def test_what_was_saved_is_told_of_this_run_alone(
    url: str, engine: ScriptedEngine, program: Path, tmp_path: Path
) -> None:
    for num_calls in (2, 3):
        options = ["--workflow", "counted", "--json", str(tmp_path / "saved.json")]
        done = run(url, sys.executable, program, num_calls, options=options)
        heading, _, row, total = done.stderr.splitlines()
        assert heading.startswith(f"agentspec run: calls to {url} in ")
        assert heading.endswith(" s of wall time; calls of others in that time are among them")
        assert row.split() == ["counted", str(num_calls), str(8 * num_calls), "2.50", "75%", "-"]
        assert total.split()[1:] == row.split()[1:]
        told = json.loads((tmp_path / "saved.json").read_text())
        assert [stage["stage"] for stage in told["stages"]] == ["counted"]
        assert told["total"]["num_requests"] == num_calls
        assert told["wall_s"] > 0
        assert (told["exit_status"], told["workflow"], told["is_alone"]) == (0, "counted", False)
        assert told["session"] == engine.last.tags.session


def test_a_gateway_that_is_gone_at_the_end(tmp_path: Path) -> None:
    engine, asked = ScriptedEngine(), tmp_path / "asked"
    os.mkfifo(asked)
    with serving_engine(engine) as root:
        process = subprocess.Popen(
            command(root, "sh", "-c", f"echo ready; cat {asked}"),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
    asked.write_bytes(b"")
    _, said = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0
    assert said.decode().startswith("agentspec run: the saving is unknown: no answer from ")


@pytest.mark.parametrize(
    ("argv", "status", "said"),
    [
        (["no-such-program"], 127, "can't run 'no-such-program': No such file or directory"),
        (["/etc/hosts"], 126, "can't run '/etc/hosts': "),
        ([], 2, "there is nothing to run"),
    ],
)
def test_what_can_not_be_run(
    url: str, engine: ScriptedEngine, argv: list[str], status: int, said: str
) -> None:
    done = run(url, *argv)
    assert (done.returncode, said in done.stderr) == (status, True)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "agentspec serve"),
        (("--workflow", "a//b"), "a//b"),
        (("--serve-options", "'"), '--serve-options "\'"'),
        (("--serve-options=--host 0.0.0.0",), "did not start"),
    ],
)
def test_what_can_not_be(options: tuple[str, ...], said: str) -> None:
    done = run("http://127.0.0.1:9", "true", options=options)
    assert (done.returncode, said in done.stderr) == (1, True), done.stderr


def test_a_gateway_of_its_own(llama_checkpoint: Path, program: Path) -> None:
    options = f"--model {llama_checkpoint} --engine torch --threads 1 --served-model-name scripted"
    done = run("http://127.0.0.1:9", sys.executable, program, 2, options=[f"--serve-options={options}"])
    assert done.returncode == 0, done.stderr
    heading, _, row, *_ = done.stderr.splitlines()
    assert "others" not in heading
    assert row.split()[1] == "2"
    (root,) = re.findall(r"http://[0-9.:]+", heading)
    assert run(root, "true").returncode == 1  # the gateway has stopped


def test_gains() -> None:
    before = [{"stage": "a", **FIGURES}, {"stage": "b", **FIGURES}, {"stage": "d", **FIGURES}]
    after = [
        {"stage": "a", **{name: 3 * value for name, value in FIGURES.items()}},
        {"stage": "b", **FIGURES},
        {"stage": "c", **FIGURES},
        {"stage": "d", **FIGURES, "num_requests": 1},  # its engine restarted
    ]
    stages = gained(before, after)
    assert [(stage["stage"], stage["num_requests"]) for stage in stages] == [("a", 4), ("c", 2), ("d", 1)]
    assert [stage["saved_request_s"] for stage in stages] == [4.0, 2.0, 2.0]
    total = summed(stages)
    assert (total["num_requests"], total["accepted_per_step"], total["saved_request_s"]) == (7, 3.0, 8.0)
    assert shown(stages).splitlines()[-1].split() == ["all", "7", "120", "3.00", "50%", "8.0", "s"]


def test_seconds_are_shown_only_where_they_were_measured() -> None:
    slower = {**FIGURES, "plain_decode_s": 0.25}
    older = {name: value for name, value in FIGURES.items() if "_decode_s" not in name}
    stages = gained([], [{"stage": "a", **slower}, {"stage": "b", **older}])
    assert [stage["saved_request_s"] for stage in stages] == [-0.75, None]
    lines = [line.split() for line in shown(stages).splitlines()]
    assert lines[0][-3:] == ["request", "time", "saved"]
    assert [line[5:] for line in lines[1:]] == [["0.8", "s", "lost"], ["-"], ["-"]]  # half is not known


@pytest.mark.parametrize(
    ("seconds", "text"), [(1.26, "1.3 s"), (0.0, "0.0 s"), (-0.04, "0.0 s"), (-0.06, "0.1 s lost")]
)
def test_time_saved_is_never_a_negative_number(seconds: float, text: str) -> None:
    assert time_saved(seconds) == text
