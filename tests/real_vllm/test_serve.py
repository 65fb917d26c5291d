"""``agentspec serve`` with real vLLM: behind the gateway and without one, and the clean-up at its end."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from agentspec import __version__
from agentspec.cli import main
from agentspec.models import BUNDLED_MODEL, bundled_model_dir
from tests.support.serving import serving as serve_process

READY_S = 900.0  # on a machine that is busy with other work
QUESTION = "List the tables with their columns."


class Served:
    """A running ``agentspec serve``: its process, its log, its URL once it is ready."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self.log = log
        self.url = ""

    @property
    def family(self) -> list[int]:
        """Process ids of the parent watchdog, of vLLM and of all processes that vLLM has started."""
        parents: dict[int, list[int]] = {}
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                pid, rest = int(stat.parent.name), stat.read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if rest[0] != "Z":
                parents.setdefault(int(rest[1]), []).append(pid)
        found, new = [], [self.process.pid]
        while new:
            new = [child for parent in new for child in parents.get(parent, [])]
            found += new
        return found

    def ask(self, text: str = QUESTION, **headers: str) -> dict[str, Any]:
        """Return a greedy response."""
        body = {"messages": [{"role": "user", "content": text}], "max_tokens": 48, "temperature": 0}
        answer = httpx.post(
            f"{self.url}/v1/chat/completions",
            json={**body, "model": BUNDLED_MODEL, "ignore_eos": True},
            headers={name.replace("_", "-"): value for name, value in headers.items()},
            timeout=READY_S,
            trust_env=False,
        )
        told: dict[str, Any] = answer.raise_for_status().json()
        return told

    def wait(self, reached: Callable[[], bool]) -> None:
        deadline = time.monotonic() + READY_S
        while not reached():
            assert self.process.poll() is None, self.log.read_text()[-2000:]
            assert time.monotonic() < deadline, self.log.read_text()[-2000:]
            time.sleep(0.2)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(READY_S)


@contextmanager
def serving(folder: Path, *options: str) -> Iterator[Served]:
    """Start a server, yield it once it has printed its URL, and kill it at the end."""
    command = [sys.executable, "-m", "agentspec", "serve", "--engine", "vllm", "--port", "0", *options]
    flags = ["--max-model-len", "2048", "--enforce-eager"]
    environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1"}
    out, log = folder / "out", folder / "log"
    with out.open("wb") as stdout, log.open("wb") as stderr:
        process = subprocess.Popen([*command, *flags], stdout=stdout, stderr=stderr, env=environment)
        served = Served(process, log)
        try:
            served.wait(lambda: out.read_text().endswith("\n"))
            ready = re.fullmatch(r"serving (\S+) on (\S+)/v1\n", out.read_text())
            assert ready is not None
            assert ready[1] == BUNDLED_MODEL
            served.url = ready[2]
            yield served
        finally:
            process.kill()
            process.wait()


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def gone(pids: list[int]) -> bool:
    deadline = time.monotonic() + 60
    while any(map(runs, pids)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return not any(map(runs, pids))


def test_behind_the_gateway_it_learns_dies_comes_back_and_remembers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    forest = tmp_path / "forest"
    options = (
        "--forest-file",
        str(forest),
        "--api-key",
        "s3cret=acme",
        "--admin-key",
        "boss",
        "--price",
        "0.02",
    )
    key = {"authorization": "Bearer s3cret"}
    with serving(tmp_path, *options) as served:
        first, second = (served.ask(**key, x_agentspec_stage="flow/list") for _ in range(2))
        assert first["choices"][0]["message"] == second["choices"][0]["message"]
        assert main(["forest", "stats", "--url", served.url, "--key", "s3cret"]) == 0
        assert "flow/list" in capsys.readouterr().out
        assert main(["forest", "save", "--url", served.url, "--key", "boss"]) == 0
        assert forest.exists()

        before = served.family
        assert len(before) >= 3  # watchdog, server, engine
        os.kill(before[1], signal.SIGKILL)
        # at first the gateway may only have found that the engine does not answer
        served.wait(
            lambda: httpx.get(f"{served.url}/health", trust_env=False).json() == {"status": "restarting"}
        )
        refused = httpx.get(f"{served.url}/v1/models", headers=key, trust_env=False)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
        served.wait(lambda: httpx.get(f"{served.url}/health", trust_env=False).status_code == 200)
        assert gone(before)

        again = served.ask(**key, x_agentspec_stage="flow/list")
        assert again["choices"][0]["message"] == first["choices"][0]["message"]
        accepted = [
            answer["metrics"]["speculative_decoding"]["num_accepted_draft_tokens"]
            for answer in (first, second, again)
        ]
        assert accepted[0] < accepted[1] <= accepted[2]  # the file had the outputs from before the restart

        after = served.family
        forest.unlink(missing_ok=True)
        assert served.stop() == 0
        assert gone(after)
        assert forest.exists()  # it also saves at shutdown
    log = served.log.read_text()
    assert "INFO the engine is vLLM, because --engine vllm was given" in log
    assert "the engine was killed by SIGKILL; it is started again in" in log
    assert "s3cret" not in log


@pytest.mark.slow  # a server; test_zero_hop has the tags
def test_without_a_gateway_it_tags_by_itself_and_our_violent_end_is_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(tmp_path, "--zero-hop", "--api-key", "s3cret=acme", "--admin-key", "boss") as served:
        with pytest.raises(httpx.HTTPStatusError, match="401"):
            served.ask()
        served.ask(authorization="Bearer s3cret", x_agentspec_stage="flow/list")
        stages = f"{served.url}/agentspec/stages"
        assert httpx.get(stages, trust_env=False).status_code == 403
        told = httpx.get(stages, headers={"authorization": "Bearer boss"}, trust_env=False).json()["stages"]
        assert [(one["tenant"], one["stage"]) for one in told] == [("acme", "flow/list")]
        monkeypatch.setenv("AGENTSPEC_ENGINE_API_KEY", "s3cret")
        monkeypatch.setenv("AGENTSPEC_CONTROL_TOKEN", "boss")
        assert main(["doctor", "--port", "0", "--engine-url", served.url]) == 0
        found = capsys.readouterr().out
        assert "it takes vllm_xargs" in found
        assert f"with AgentSpec {__version__}" in found
        family = served.family
        for pid in family:
            assert b"s3cret" not in Path(f"/proc/{pid}/cmdline").read_bytes()
        served.process.kill()
        assert gone(family)


@pytest.mark.slow  # a server; test_gateway has the tags
def test_an_engine_for_gateways_elsewhere_takes_their_tags_and_needs_their_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTSPEC_ENGINE_API_KEY", "theirs")
    monkeypatch.setenv("AGENTSPEC_CONTROL_TOKEN", "token")
    with serving(tmp_path, "--engine-only", "--grace-s", "3") as engine:
        with pytest.raises(httpx.HTTPStatusError, match="401"):
            engine.ask()
        gateway = ("--engine-url", engine.url, "--api-key", "ka=acme", "--api-key", "kb=bolt")
        with serve_process(*gateway) as (_, url):
            for key in ("ka", "kb"):
                headers = {"authorization": f"Bearer {key}", "x-agentspec-stage": "flow/list"}
                body = {"model": BUNDLED_MODEL, "prompt": QUESTION, "max_tokens": 8}
                answer = httpx.post(
                    f"{url}/completions", json=body, headers=headers, timeout=READY_S, trust_env=False
                )
                assert answer.status_code == 200, answer.text
        stages = f"{engine.url}/agentspec/stages"
        assert httpx.get(stages, trust_env=False).status_code == 403
        seen = httpx.get(stages, headers={"authorization": "Bearer token"}, trust_env=False).json()["stages"]
        assert sorted((one["tenant"], one["stage"]) for one in seen) == [
            ("acme", "flow/list"),
            ("bolt", "flow/list"),
        ]
        family = engine.family
        assert engine.stop() == 0
        assert gone(family)


@pytest.mark.slow
def test_what_vllm_refuses_is_told(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "agentspec", "serve", "--model", str(bundled_model_dir())]
    run = subprocess.run(
        [*command, "--port", "0", "--no-such-flag=7"],
        capture_output=True,
        text=True,
        timeout=READY_S,
        check=False,
    )
    assert run.returncode == 1
    assert "agentspec: error: the engine did not start: it ended with status 2" in run.stderr
    assert "unrecognized arguments: --no-such-flag=7" in run.stderr
