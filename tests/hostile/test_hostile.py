"""Run the attacks on a real ``agentspec serve``: none succeeds, and the server still answers."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from threading import Condition, Thread
from typing import IO, Any

import httpx
import pytest

from tests.hostile.__main__ import GROUPS, main
from tests.hostile.engine import bad_engine
from tests.hostile.target import DEADLINE_S, NotHereError, Target
from tests.support.serving import serving

MINE, THEIRS, OPERATOR = "key-of-mine", "key-of-theirs", "key-of-the-operator"
KEYS = f"""
keys:
  - {{sha256: {sha256(MINE.encode()).hexdigest()}, tenant: mine}}
  - {{sha256: {sha256(THEIRS.encode()).hexdigest()}, tenant: theirs}}
admin_key_sha256: {sha256(OPERATOR.encode()).hexdigest()}
"""
HURRIED = KEYS + "limits: {head_s: 1, body_s: 1}\n"  # only for attacks that wait for these time-outs
ALL = [(group, attack) for group, attacks in GROUPS.items() for attack in attacks]


class Log:
    """A process's output, read as it arrives so that the process never blocks on the pipe."""

    def __init__(self, pipe: IO[str]) -> None:
        self._lines: list[str] = []
        self._more = Condition()
        self._reading = Thread(target=self._read, args=(pipe,), daemon=True)
        self._reading.start()

    def join(self) -> None:
        """Wait for the pipe's end. The pipe may only be closed after that."""
        self._reading.join()

    def wait_for(self, *texts: str) -> str:
        """Wait for the next line with one of these texts and return it. Drop it and the lines before it."""

        def found() -> str | None:
            return next((line for line in self._lines if any(text in line for text in texts)), None)

        with self._more:
            assert self._more.wait_for(found, DEADLINE_S), self._lines[-5:]
            line = found()
            assert line is not None
            del self._lines[: self._lines.index(line) + 1]
            return line

    def _read(self, pipe: IO[str]) -> None:
        for line in pipe:
            with self._more:
                self._lines.append(line)
                self._more.notify_all()


@contextmanager
def attacked(file: Path, text: str, *options: str) -> Iterator[tuple[Target, subprocess.Popen[str], Log]]:
    file.write_text(text)
    with serving("--config", str(file), *options) as (process, url):
        assert process.stderr is not None
        log = Log(process.stderr)
        try:
            yield Target(url.removesuffix("/v1"), MINE, THEIRS, OPERATOR), process, log
        finally:
            process.kill()
            log.join()


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """Yield the bundled model, with text learned for the other tenant."""
    file = tmp_path_factory.mktemp("hostile") / "agentspec.yaml"
    with attacked(file, KEYS) as (target, _, _):
        warmed = {"stage": "secret/stage", "response": "secret-of-theirs"}
        assert target.post("/agentspec/warm", warmed, THEIRS).status_code == 200
        yield target


@pytest.fixture(scope="module")
def hurried_target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with attacked(tmp_path_factory.mktemp("hurried") / "agentspec.yaml", HURRIED) as (target, _, _):
        yield target


@pytest.mark.parametrize(
    ("group", "attack"), ALL, ids=[f"{group}: {attack.name}".replace("/", "_") for group, attack in ALL]
)
def test_an_attack(request: pytest.FixtureRequest, group: str, attack: Any) -> None:
    is_slow = getattr(attack, "is_slow", False)
    target: Target = request.getfixturevalue("hurried_target" if is_slow else "target")
    attack.run(target)
    assert target.get("/health").status_code == 200


def test_every_attack_has_a_name_of_its_own() -> None:
    names = [(group, attack.name) for group, attack in ALL]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    "url", ["http://192.0.2.1:8000", "http://example.org", "http://0.0.0.0:1", "127.0.0.1"]
)
def test_other_machines_are_not_attacked(url: str) -> None:
    with pytest.raises(NotHereError):
        Target(url, "a", "b")
    assert main(["--url", url, "--key", "a", "--other-key", "b"]) == 2


def test_the_script(target: Target, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--url", target.root, "--key", MINE, "--other-key", THEIRS, "--only", "tenants"]) == 0
    assert capsys.readouterr().out.endswith(" 0 succeeded\n")


def test_a_tenant_that_fails_and_a_stream_that_breaks_off(tmp_path: Path) -> None:
    with bad_engine() as engine:
        text = KEYS + f"upstreams: [{{url: '{engine}'}}]\n"
        with attacked(tmp_path / "agentspec.yaml", text) as (target, _, log):

            def ask(user: str, key: str = MINE, **fields: Any) -> httpx.Response:
                body = {"messages": [{"role": "user", "content": "hi"}], "user": user, **fields}
                return target.post("/v1/chat/completions", body, key)

            assert b"upstream_unavailable" in ask("breaks", stream=True).content
            assert "request_id=" in log.wait_for("an answer broke off")
            assert "outcome=engine_lost" in log.wait_for(" call ")
            assert 'reason="engine_lost"' in target.get("/metrics", OPERATOR).text
            assert ask("well").status_code == 200
            assert [ask(f"fails {number}").status_code for number in range(14)] == [500] * 14
            assert ask("well", THEIRS).status_code == 200


def test_a_configuration_that_is_written_half_opens_nothing(tmp_path: Path) -> None:
    """Clients without a key, or without the operator's key, stay out at every cut."""
    file = tmp_path / "agentspec.yaml"
    text = "server: {log_level: info}\n" + KEYS
    with bad_engine() as engine:
        text += f"upstreams: [{{url: '{engine}'}}]\n"
        with attacked(file, text) as (target, process, log):
            for length in range(0, len(text), 29):
                file.write_text(text[:length])
                os.kill(process.pid, signal.SIGHUP)
                log.wait_for("the configuration stays as it was", "the configuration was read again")
                assert target.get("/v1/models", "wrong").status_code == 401, text[:length]
                for path in ("/metrics", "/agentspec/stages"):
                    assert target.get(path, "wrong").status_code in (401, 403), text[:length]
                assert target.post("/agentspec/save", b"", "wrong").status_code in (401, 403)


def test_a_forest_is_saved_over_no_other_file(tmp_path: Path) -> None:
    file, other = tmp_path / "agentspec.yaml", tmp_path / "other"
    other.mkdir()
    forest = tmp_path / "trees" / "forest"
    forest.parent.mkdir()
    with attacked(file, KEYS, "--forest-file", str(forest)) as (target, _, _):
        before = file.read_bytes()
        (forest.parent / "notes").write_text("mine")
        (forest.parent / "link").symlink_to(file)
        for path in (
            str(file),
            "../agentspec.yaml",
            str(other / "new"),
            "notes",
            "link",
            "/dev/null",
            "a\0b",
        ):
            answer = target.post("/agentspec/save", {"path": path}, OPERATOR)
            assert 400 <= answer.status_code < 500, (path, answer.text)
            assert target.post("/agentspec/save", {"path": path}, MINE).status_code == 403
        assert file.read_bytes() == before
        assert (forest.parent / "notes").read_text() == "mine"
        assert list(other.iterdir()) == []
        assert target.post("/agentspec/save", b"", OPERATOR).status_code == 200
