"""Tests of ``agentspec init`` at a real terminal, and on every path through its questions."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from agentspec.cli import main
from agentspec.commands.init import Answers, ask, written
from agentspec.commands.key import new_key
from agentspec.commands.settings_file import settings_file
from agentspec.gateway.auth.api_keys import digest_of
from agentspec.gateway.config_file import load_settings
from agentspec.gateway.settings import Settings
from agentspec.models import bundled_model_dir
from agentspec.serve_settings import EngineSettings

TIMEOUT_S = 60.0


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    for file in bundled_model_dir().iterdir():
        (folder / file.name).symlink_to(file)
    return folder


@contextmanager
def typing(*lines: str) -> Iterator[None]:
    """Feed these lines to standard input, as typed by a user."""
    before = sys.stdin
    sys.stdin = io.StringIO("".join(f"{line}\n" for line in lines))
    try:
        yield
    finally:
        sys.stdin = before


def answered(*lines: str) -> tuple[Answers, str]:
    shown = io.StringIO()
    with typing(*lines):
        return ask(Console(file=shown, width=200)), shown.getvalue()


def ways(checkpoint: Path, keep: Path) -> Iterator[list[str]]:
    """Yield every path through the questions."""
    engines = (
        ["bundled"],
        *(["checkpoint", str(checkpoint), device] for device in ("cpu", "cuda")),
        ["vllm", "Qwen/Qwen3-8B"],
        *(["running", "http://a:8000", answer] for answer in ("y", "n")),
        ["running", "http://a:8000 http://b:8000/v1", ""],
    )
    callers = (
        ["", "8001", ""],
        ["this machine", "", "acme"],
        ["others", "", ""],
        ["others", "0", "acme, beta"],
    )
    for engine, caller, folder in product(engines, callers, ("", str(keep))):
        memory = [] if engine[0] == "running" else ["32"]
        yield [*engine, *caller, folder, *memory]


@pytest.mark.usefixtures("vllm")
def test_every_way_leads_to_a_file_that_serve_takes(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, num_ways = tmp_path / "agentspec.yaml", 0
    (tmp_path / "keep").mkdir()
    for lines in ways(checkpoint, tmp_path / "keep"):
        answers, _ = answered(*lines)
        digests = {owner: new_key()[1] for owner in (None, *answers.tenants)} if answers.tenants else {}
        file.write_text(written(answers, digests))
        assert main(["serve", "--config", str(file), "--dry-run", "--port", "0"]) == 0, lines
        settings = load_settings(file)
        assert [key.tenant for key in settings.keys] == list(answers.tenants)
        assert tuple(upstream.url for upstream in settings.upstreams) == answers.urls
        assert (settings.server.port, settings.server.host != "127.0.0.1") == (answers.port, answers.is_open)
        assert (settings.engine.engine == "auto") is (answers.engine == "running")
        capsys.readouterr()
        num_ways += 1
    assert num_ways == 56


def test_what_is_asked_for_is_in_the_file(checkpoint: Path, tmp_path: Path) -> None:
    keep = tmp_path / "keep"
    answers, _ = answered("checkpoint", str(checkpoint), "cuda", "others", "0", "acme", str(keep), "32")
    told = yaml.safe_load(written(answers, {None: "0" * 64, "acme": "1" * 64}))
    assert told["engine"] == {
        "engine": "torch",
        "model": str(checkpoint),
        "device": "cuda",
        "stage_budget_mb": 32,
        "forest_file": str(keep / "forest"),
    }
    assert told["keys"] == [{"sha256": "1" * 64, "tenant": "acme"}]
    assert (told["admin_key_sha256"], told["server"]["host"]) == ("0" * 64, "0.0.0.0")
    assert told["discovery"]["path"] == str(keep / "stages.sqlite")


def test_a_bad_answer_is_asked_for_again(checkpoint: Path, tmp_path: Path) -> None:
    answers, shown = answered(
        *("checkpoint", "", str(tmp_path), str(checkpoint), "", "others", "70000", "9", "a/b/\0", "acme", ""),
        *("much", "8"),
    )
    assert (answers.model, answers.port, answers.tenants) == (str(checkpoint), 9, ("acme",))
    assert answers.stage_budget_mb == 8
    for said in ("it needs a name", "has no config.json", "a port is a number", "a whole number"):
        assert said in shown
    _, shown = answered("running", "gpu-box", "http://gpu-box:8000", "", "", "", "", "")
    assert "'gpu-box'" in shown


def test_the_defaults_change_nothing_but_the_engine(tmp_path: Path) -> None:
    file = tmp_path / "agentspec.yaml"
    assert main(["init", "--yes", "--output", str(file)]) == 0
    assert load_settings(file) == Settings(engine=EngineSettings(engine="torch"))


def test_every_value_can_be_set() -> None:
    given = {"server": {"host": "a: #b"}, "keys": [{"sha256": "a"}, {"tenant": "b"}], "engine": {"slots": 3}}
    told = yaml.safe_load(settings_file(given))
    assert (told["server"]["host"], told["keys"], told["engine"]) == ("a: #b", given["keys"], given["engine"])


def test_what_is_there_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "agentspec.yaml"
    file.write_text("mine")
    assert main(["init", "--yes", "--output", str(file)]) == 1
    assert "is there already" in capsys.readouterr().err
    assert file.read_text() == "mine"


def test_without_a_terminal(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "agentspec", "init"],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert run.returncode == 1
    assert "agentspec init --yes takes the defaults" in run.stderr
    assert list(tmp_path.iterdir()) == []


def at_terminal(folder: Path, *lines: str) -> tuple[int, str, str]:
    """Return the exit status, standard output and the terminal's remaining output."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "agentspec", "init"],
        cwd=folder,
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        os.close(theirs)
        os.write(ours, "".join(f"{line}\n" for line in lines).encode())
        out, shown = process.communicate(timeout=TIMEOUT_S)
    os.close(ours)
    return process.returncode, out, shown


def test_at_a_terminal(tmp_path: Path) -> None:
    answers = ("bundled", "others", "8001", "acme", "", "64")
    status, out, shown = at_terminal(tmp_path, *answers)
    assert status == 0, shown
    operator, tenant = out.splitlines()
    settings = load_settings(tmp_path / "agentspec.yaml")
    assert settings.keys[0].sha256 == digest_of(tenant.removeprefix("tenant acme: ")).hex()
    assert settings.admin_key_sha256 == digest_of(operator.removeprefix("the operator: ")).hex()
    assert "Which engine?" in shown
    assert out.split()[-1] not in (tmp_path / "agentspec.yaml").read_text()

    status, _, shown = at_terminal(tmp_path, "n")
    assert (status, load_settings(tmp_path / "agentspec.yaml")) == (1, settings)
    status, _, _ = at_terminal(tmp_path, "y", "", "", "", "", "", "")
    assert (status, load_settings(tmp_path / "agentspec.yaml").keys) == (0, ())
