"""Claude Code and Codex themselves, started as in docs/adapters.md (``make test-coding-agents``)."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.support.coding_server import coding_app
from tests.gateway.support.live import serving_app, serving_proxy

ROOT = Path(__file__).parents[2]
COMMANDS = ROOT / ".venv-clients" / "node" / "node_modules" / ".bin"
PAGE = ROOT / "docs" / "adapters.md"
URL = "http://127.0.0.1:8000"
TIMEOUT_S = 120.0

pytestmark = pytest.mark.skipif(
    not COMMANDS.exists(), reason="there are no coding agents here: make test-coding-agents"
)


def blocks(command: str) -> list[str]:
    """Return the shell blocks of the page's section that run the command."""
    _, _, section = PAGE.read_text(encoding="utf-8").partition("\n## Claude Code, Codex and other clients\n")
    return [block for block in re.findall(r"```sh\n(.*?)```", section, flags=re.DOTALL) if command in block]


@pytest.fixture
def served() -> Iterator[tuple[list[Any], str]]:
    """Yield the calls that the engine received, and the gateway's URL."""
    app = coding_app()
    with serving_app(app) as engine, serving_proxy(engine) as root:
        yield app.state.asked, root


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Make a home folder with a project in it and the command ``agentspec``."""
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "agentspec"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m agentspec "$@"\n')
    command.chmod(0o755)
    (tmp_path / "project").mkdir()
    subprocess.run(["git", "init", "-q", tmp_path / "project"], check=True)
    return tmp_path


def run(block: str, root: str, home: Path) -> str:
    """Run the block's commands and return their output."""
    done = subprocess.run(
        ["sh", "-ec", block.replace(URL, root)],
        cwd=home / "project",
        env={
            "HOME": str(home),
            "PATH": f"{home / 'bin'}:{COMMANDS}:{os.environ['PATH']}",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "0",
            "DISABLE_AUTOUPDATER": "1",
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.parametrize("number", [0, 1])
def test_claude_code(served: tuple[list[Any], str], home: Path, number: int) -> None:
    asked, root = served
    shown = run(blocks("claude")[number], root, home)
    assert "Done." in shown
    stages = [stage for path, stage, _ in asked if path == "/v1/messages"]
    assert stages.count("claude_code/main") == 2  # it asked for sub-agents, and received their answers
    others = set(stages) - {"claude_code/main"}
    assert {name.rpartition("-")[0] for name in others} >= {
        "claude_code/file-search-code",
        "claude_code/code-user-message",
    }
    assert all(re.fullmatch(r"claude_code/[a-z-]+-[0-9a-f]{4}", name) for name in others)
    (session,) = {session for *_, session in asked}
    assert session.startswith("run-") is ("agentspec run" in blocks("claude")[number])


def test_codex(served: tuple[list[Any], str], home: Path) -> None:
    asked, root = served
    (block,) = blocks("codex exec")
    assert "Done." in run(block, root, home)
    assert sorted(stage for _, stage, _ in asked) == ["codex/collab_spawn", "codex/main", "codex/main"]
    assert len({session for *_, session in asked}) == 1
