"""``kill -9`` of ``agentspec run`` ends the processes that it started.

Processes that left on purpose survive.
"""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agentspec.commands.run import watchdog
from agentspec.commands.run.watchdog import processes
from tests.commands.support.running import TIMEOUT_S, command
from tests.gateway.support.scripted import ScriptedEngine

PIPES: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
# every process holds the program's standard output, which ends when the last of them ends
SHAPES = {
    "program": "signal.pause()",
    "child": "subprocess.run([sys.executable, '-c', 'import signal; signal.pause()'])",
    "deaf": "signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); signal.pause()",
    "stopped": "os.kill(os.getpid(), signal.SIGSTOP)",
    "group": "subprocess.run(['sh', '-c', 'sleep 1000; :'], process_group=0)",
    "session": "subprocess.run(['sh', '-c', 'sleep 1000; :'], start_new_session=True)",
    "orphan": "os.system('sleep 1000 &'); signal.pause()",
    "fork": "os.fork() or os.fork(); signal.pause()",
}
BEGIN = "import os, signal, subprocess, sys; print('ready', flush=True); "
DAEMON = """
import os, signal, sys
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.close(1)
        ready, asked = os.open(sys.argv[1], os.O_WRONLY), os.open(sys.argv[2], os.O_RDONLY)
        os.write(ready, b"ready")
        os.read(asked, 1)
        os.write(ready, b"alive")
    os._exit(0)
os.wait()
print("ready", flush=True)
signal.pause()
"""


@pytest.mark.parametrize("shape", [name for name in SHAPES if sys.platform == "linux" or name != "orphan"])
def test_all_of_it_ends(url: str, engine: ScriptedEngine, shape: str) -> None:
    with subprocess.Popen(command(url, sys.executable, "-c", BEGIN + SHAPES[shape]), **PIPES) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.kill()
        assert process.stdout.read() in ("", "deaf\n")
        assert process.wait(TIMEOUT_S) == -signal.SIGKILL


def test_a_gateway_of_its_own_ends_too(llama_checkpoint: Path) -> None:
    serve = f"--model {llama_checkpoint} --engine torch --threads 1"
    argv = command("", *("sh", "-c", "echo $OPENAI_BASE_URL; cat"), options=[f"--serve-options={serve}"])
    with subprocess.Popen(argv, stderr=subprocess.PIPE, **PIPES) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith("http://127.0.0.1:")
        process.kill()
        assert process.stdout.read() == ""
        process.stderr.read()  # the gateway holds stderr too, so it ends with the gateway


def test_a_daemon_goes_on(url: str, engine: ScriptedEngine, tmp_path: Path) -> None:
    fifos = [tmp_path / name for name in ("ready", "asked")]
    for fifo in fifos:
        os.mkfifo(fifo)
    with subprocess.Popen(command(url, sys.executable, "-c", DAEMON, *fifos), **PIPES) as process:
        assert process.stdout is not None
        with fifos[0].open("rb", 0) as ready, fifos[1].open("wb", 0) as asked:
            assert ready.read(5) == b"ready"
            assert process.stdout.readline() == "ready\n"
            process.kill()
            assert process.stdout.read() == ""
            asked.write(b".")
            assert ready.read(5) == b"alive"


def test_what_a_program_left_running_goes_on(url: str, engine: ScriptedEngine, tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    os.mkfifo(asked)
    left = f"(read line < {asked}; echo alive) & echo ready"
    with subprocess.Popen(command(url, "sh", "-c", left), **PIPES) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        assert process.wait(TIMEOUT_S) == 0
        asked.write_text("go\n")
        assert process.stdout.readline() == "alive\n"


def test_the_watchdog_ends_with_the_program(url: str, engine: ScriptedEngine) -> None:
    with subprocess.Popen(command(url, "sh", "-c", "echo ready; cat"), **PIPES) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        children = {one.pid for one in processes().values() if one.parent == process.pid}
        process.communicate("", TIMEOUT_S)
        assert len(children) == 2
        assert not children & processes().keys()


def test_the_table_without_proc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    table = processes()
    monkeypatch.setattr(watchdog, "PROC", tmp_path)
    try:
        told = processes()
    except FileNotFoundError:
        pytest.skip("there is no ps")
    mine = told[os.getpid()]
    assert mine.parent == table[os.getpid()].parent == os.getppid()
    assert mine == processes()[os.getpid()]


SHELL = """
import os, signal, subprocess, sys
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
terminal = os.open(os.ctermid(), os.O_RDWR)
job = subprocess.Popen(sys.argv[1:], process_group=0, restore_signals=True)
os.tcsetpgrp(terminal, job.pid)
_, status = os.waitpid(job.pid, os.WUNTRACED)
print("stopped", os.WIFSTOPPED(status), flush=True)
os.tcsetpgrp(terminal, job.pid)
os.killpg(job.pid, signal.SIGCONT)
_, status = os.waitpid(job.pid, 0)
print("status", os.waitstatus_to_exitcode(status), flush=True)
os._exit(0)
"""


def test_a_job_is_stopped_and_goes_on(url: str, engine: ScriptedEngine) -> None:
    """Do what a shell does on Ctrl-Z and ``fg``."""
    child, terminal = pty.fork()
    if child == 0:
        job = command(url, "sh", "-c", "echo ready; read line; exit 4")
        os.execv(sys.executable, [sys.executable, "-c", SHELL, *job])
    for typed, wanted in ((b"", b"ready"), (b"\x1a", b"stopped True"), (b"line\n", b"status 4")):
        os.write(terminal, typed)
        shown = b""
        while wanted not in shown:
            shown += os.read(terminal, 4096)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    os.close(terminal)
