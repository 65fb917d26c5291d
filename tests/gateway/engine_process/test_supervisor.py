"""The engine supervisor with a real subprocess: start, monitoring, restart and end."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import httpx
import pytest

from agentspec.gateway import EngineCommand, EngineSupervisor, EngineTimeouts
from agentspec.gateway.engine_process import supervisor
from agentspec.gateway.engine_process.supervisor import LONGEST_DELAY_S, EngineStartError, back_off_s
from tests.gateway.support.live import TIMEOUT_S
from tests.support.ports import reserved_port

ENGINE_SERVER = Path(__file__).parents[1] / "support" / "engine_server.py"


class Engine:
    """A test engine and the ids of its processes."""

    def __init__(self, folder: Path, way: str = "", *, stop_timeout_s: float = 10, **timeouts: float) -> None:
        reserved = ExitStack()
        port = reserved.enter_context(reserved_port())
        weakref.finalize(self, reserved.close)
        self.starts = folder / "starts"
        self.root = f"http://127.0.0.1:{port}"
        argv = [sys.executable, str(ENGINE_SERVER), str(port), str(self.starts), *([way] if way else [])]
        self.command = EngineCommand(argv, {"AGENTSPEC_TEST": "from us"}, stop_timeout_s)
        self.process = EngineSupervisor(self.command, self.root, timeouts=EngineTimeouts(**timeouts))

    @property
    def pids(self) -> list[list[int]]:
        """Process ids of the engine and its child, by start."""
        if not self.starts.exists():
            return []
        return [list(map(int, line.split())) for line in self.starts.read_text().splitlines()]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[asyncio.Task[None]]:
        ready = asyncio.Event()
        task = asyncio.create_task(self.process.run(ready.set))
        try:
            await asyncio.wait_for(ready.wait(), TIMEOUT_S)
            yield task
        finally:
            task.cancel()
            await asyncio.wait({task})


def runs(pid: int) -> bool:
    """Return True if the process exists and is not a zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


async def gone(*pids: int) -> None:
    """Wait until killed processes have exited, which takes a moment."""
    await until(lambda: not any(map(runs, pids)))


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while not condition():  # noqa: ASYNC110 (other processes set no event)
            await asyncio.sleep(0.02)


async def test_it_runs_until_it_is_cancelled_and_nothing_is_left(tmp_path: Path) -> None:
    engine = Engine(tmp_path)
    assert engine.process.phase == "starting"
    async with engine.running() as task:
        assert (engine.process.is_ready, engine.process.phase) == (True, "ok")
        [pids] = engine.pids
        assert all(map(runs, pids))
    assert task.cancelled()
    await gone(*pids)


async def test_it_gets_the_environment_that_no_command_line_shows(tmp_path: Path) -> None:
    engine = Engine(tmp_path)
    async with engine.running(), httpx.AsyncClient(trust_env=False) as client:
        assert (await client.get(f"{engine.root}/environment")).text == "from us"
    assert "from us" not in repr(engine.command)


async def test_who_does_not_end_when_asked_is_killed(tmp_path: Path) -> None:
    engine = Engine(tmp_path, "stubborn", stop_timeout_s=0.5)
    async with engine.running():
        [pids] = engine.pids
    await gone(*pids)


async def test_what_dies_is_started_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    engine = Engine(tmp_path)
    async with engine.running():
        [[pid, child]] = engine.pids
        os.kill(pid, signal.SIGKILL)
        await until(lambda: engine.process.phase == "restarting")
        assert not engine.process.is_ready
        await until(lambda: engine.process.is_ready)
        await gone(pid, child)  # they held memory that the next one needs
        assert len(engine.pids) == 2
        assert "the engine was killed by SIGKILL; it is started again in" in caplog.text
    await gone(*engine.pids[1])


async def test_its_guards_death_is_its_own(tmp_path: Path) -> None:
    engine = Engine(tmp_path)
    async with engine.running():
        [[pid, child]] = engine.pids
        os.kill(os.getpgid(pid), signal.SIGKILL)
        await until(lambda: len(engine.pids) == 2 and engine.process.is_ready)
        await gone(pid, child)


async def test_silence_is_death(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "HEALTH_TIMEOUT_S", 1.0)
    engine = Engine(tmp_path, "silent", silence_s=1.5)
    async with engine.running():
        await until(lambda: len(engine.pids) == 2)
        await gone(*engine.pids[0])


async def test_a_first_start_that_fails_says_why(tmp_path: Path) -> None:
    engine = Engine(tmp_path, "fails")
    with pytest.raises(EngineStartError, match="it ended with status 3") as caught:
        await engine.process.run()
    assert str(caught.value).endswith("\n  (Engine pid=1) [engine.py:9] no such model")
    assert len(engine.pids) == 1
    await gone(*engine.pids[0])


async def test_a_first_start_that_takes_too_long(tmp_path: Path) -> None:
    engine = Engine(tmp_path, "slow", start_timeout_s=0.2)
    with pytest.raises(EngineStartError, match="it was not ready after"):
        await engine.process.run()
    await gone(*(pid for pids in engine.pids for pid in pids))


async def test_a_command_that_is_not_there(tmp_path: Path) -> None:
    process = EngineSupervisor(EngineCommand([str(tmp_path / "vllm")]), "http://127.0.0.1:9")
    with pytest.raises(EngineStartError, match="No such file or directory"):
        await process.run()


async def test_its_output_is_in_the_log_at_its_own_levels(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with Engine(tmp_path).running():
        pass
    said = [(one.levelname, one.message) for one in caplog.records if one.name == "agentspec.engine"]
    assert said == [
        ("WARNING", "engine: half"),
        ("INFO", "engine: no level"),
        ("INFO", "engine: (Engine pid=1) [engine.py:7] asked to end"),
    ]


def test_the_wait_before_a_restart_grows_to_a_bound_and_varies() -> None:
    waits = [[back_off_s(failures) for _ in range(50)] for failures in range(12)]
    for failures, some in enumerate(waits):
        longest_s = min(LONGEST_DELAY_S, 2.0**failures)
        assert all(longest_s / 2 <= wait <= longest_s for wait in some)
        assert len(set(some)) > 1


async def test_our_own_violent_death_leaves_nothing(tmp_path: Path) -> None:
    engine = Engine(tmp_path)
    code = f"""
import asyncio
from agentspec.gateway import EngineCommand, EngineSupervisor
process = EngineSupervisor(EngineCommand({list(engine.command.argv)}), {engine.root!r})
asyncio.run(process.run(lambda: print("ready", flush=True)))
"""
    us = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=subprocess.PIPE)
    assert us.stdout is not None
    assert await us.stdout.readline() == b"ready\n"
    us.kill()
    await us.wait()
    [pids] = engine.pids
    await gone(*pids)
