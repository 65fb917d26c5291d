"""An agent's workspace: a fresh copy of a repository, in a folder with the same name in every run.

Recorded answers name that folder, so it can't be random. A lock prevents concurrent runs. The sandbox
protects against an agent's mistakes, not against malice: see README.md.
"""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agentspec.errors import ConfigError
from examples.openhands.task import Task

ROOT = Path("/tmp/agentspec-repair")
SHELL = ROOT / "shell"
TEST_LIMIT_S = 60.0

_GIT = ("git", "-c", "user.name=example", "-c", "user.email=example@localhost", "-c", "commit.gpgsign=false")
_DAY = "2026-01-01T00:00:00Z"  # fixed, so that commits have the same hash in every run
_RUN_TESTS = """
import json, unittest
suite = unittest.defaultTestLoader.discover(".")
def names(part):
    if isinstance(part, unittest.TestSuite):
        return [name for one in part for name in names(one)]
    return [part.id()]
every, result = names(suite), unittest.TestResult()
suite.run(result)
failed = {test.id() for test, _ in result.failures + result.errors}
print(json.dumps({name: name not in failed for name in every}))
"""
_SHELL = """\
#!/bin/sh
# what the terminal tool runs: no settings or secrets of the user, limits, and no network if that can be had
ulimit -t 60
ulimit -v 4194304
ulimit -f 262144
exec {network}env -i HOME={home} PATH={path} TERM="$TERM" PS1="$PS1" PS2= LANG=C.UTF-8 \\
  GIT_PAGER=cat PAGER=cat PYTHONDONTWRITEBYTECODE=1 bash --norc --noprofile "$@"
"""


@contextmanager
def sandbox() -> Iterator[bool]:
    """Lock the folder of workspaces and write the shell; yield True if the shell has no network.

    Raises:
        ConfigError: another run is active, or the folder belongs to another user, who may control the shell.
    """
    ROOT.mkdir(mode=0o700, exist_ok=True)
    if ROOT.is_symlink() or ROOT.stat().st_uid != os.getuid():
        raise ConfigError(f"{str(ROOT)!r} was made by somebody else: take it away, or run where it is yours")
    with (ROOT / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"another run works in {str(ROOT)!r}: wait until it is over") from None
        yield _write_shell()


def _write_shell() -> bool:
    home, alone = ROOT / "home", ["unshare", "--map-current-user", "--net"]
    home.mkdir(exist_ok=True)
    (home / ".inputrc").write_text("set enable-bracketed-paste off\n")
    (home / ".gitconfig").write_text("[color]\n\tui = never\n")
    has_no_network = _works(alone)
    path = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"
    network = f"{shlex.join(alone)} " if has_no_network else ""
    SHELL.write_text(_SHELL.format(network=network, home=shlex.quote(str(home)), path=shlex.quote(path)))
    SHELL.chmod(0o755)
    return has_no_network


def _works(command: list[str]) -> bool:
    try:
        return subprocess.run([*command, "true"], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def fresh(task: Task) -> Path:
    """Return a copy of the task's repository before the repair, with one commit."""
    folder = ROOT / task.name
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(task.files, folder, ignore=shutil.ignore_patterns("__pycache__"))
    for arguments in (("init", "--quiet", "-b", "main"), ("add", "."), ("commit", "-qm", "As it is")):
        dates = {"GIT_AUTHOR_DATE": _DAY, "GIT_COMMITTER_DATE": _DAY, "HOME": str(ROOT / "home")}
        subprocess.run([*_GIT, *arguments], cwd=folder, check=True, env={**dates, "PATH": "/usr/bin:/bin"})
    return folder


def results_of(folder: Path) -> dict[str, bool]:
    """Return True or False per test, passed or failed; empty if the tests can't run."""
    command = [sys.executable, "-B", "-c", _RUN_TESTS]
    try:
        run = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=TEST_LIMIT_S, check=True
        )
    except subprocess.SubprocessError:
        return {}
    passed: dict[str, bool] = json.loads(run.stdout.splitlines()[-1])
    return passed


def judged(task: Task, folder: Path) -> dict[str, bool]:
    """Return the results of the task's original tests in the folder; ignore the agent's changes to tests."""
    with tempfile.TemporaryDirectory() as judging:
        copy = Path(judging) / task.name
        shutil.copytree(folder, copy, ignore=shutil.ignore_patterns(".git", "test_*.py"))
        for test in task.files.glob("test_*.py"):
            shutil.copy(test, copy)
        return results_of(copy)
