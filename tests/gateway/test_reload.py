"""A configuration change in a running gateway, as with ``agentspec serve --config``."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import httpx
import pytest

from agentspec.cli import main
from agentspec.generation import ModelCard
from tests.gateway.support.live import TIMEOUT_S, chat_body, client_of, post, serving_engine
from tests.gateway.support.scripted import ScriptedEngine
from tests.support.serving import serving


def config(*urls: str, key: str = "") -> str:
    lines = [f"  - url: {url}" for url in urls]
    keys = f"keys: [{{sha256: {sha256(key.encode()).hexdigest()}, tenant: acme}}]\n" if key else ""
    return "\n".join(["upstreams:", *lines, "health: {interval_s: 0.05}", keys])


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_another_engine_while_a_stream_goes_on(tmp_path: Path) -> None:
    file = tmp_path / "agentspec.yaml"
    first, second = ScriptedEngine(is_endless=True), ScriptedEngine(model=ModelCard("second", 4096))
    with serving_engine(first) as one, serving_engine(second) as two:
        file.write_text(config(one))
        with serving("--config", str(file)) as (process, url), client_of(url.removesuffix("/v1")) as client:
            root = url.removesuffix("/v1")
            stream = iter(client.chat.completions.create(**chat_body(stream=True)))
            next(stream)
            file.write_text(config(two))  # noticed without a signal
            wait_until(lambda: client.models.list().data[0].id == "second")
            for _ in range(20):  # from the first engine, which is no longer in the file
                next(stream)
            assert post(root, chat_body(model="second")).status_code == 200
            assert (len(first.requests), len(second.requests)) == (1, 1)
            first.is_endless = False
            assert process.poll() is None


def test_keys_come_and_go_on_sighup_and_errors_change_nothing(tmp_path: Path) -> None:
    file = tmp_path / "agentspec.yaml"
    with serving_engine(ScriptedEngine()) as engine:
        file.write_text(config(engine, key="old"))
        with serving("--config", str(file)) as (process, url):
            root = url.removesuffix("/v1")

            def opens(key: str) -> bool:
                answer = httpx.get(f"{root}/v1/models", headers={"authorization": f"Bearer {key}"})
                return answer.status_code == 200

            assert opens("old")
            file.write_text("upstreams: [\n")
            os.kill(process.pid, signal.SIGHUP)
            assert opens("old")
            file.write_text(config(engine, key="new"))
            os.kill(process.pid, signal.SIGHUP)
            wait_until(lambda: opens("new"))
            assert not opens("old")
            file.unlink()
            os.kill(process.pid, signal.SIGHUP)
            assert opens("new")


def test_a_dry_run_shows_all_settings_and_no_secret(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "agentspec.yaml"
    file.write_text("upstreams: [{url: 'http://a', api_key: s3cret}]\nrouting: {spill: 3}\n")
    monkeypatch.setenv("AGENTSPEC_SERVER__PORT", "0")
    assert main(["serve", "--config", str(file), "--dry-run", "--grace-s", "9"]) == 0
    shown = capsys.readouterr().out
    assert "s3cret" not in shown
    for line in ("port: 0", "grace_s: 9.0", "spill: 3.0", "api_key: (hidden)"):
        assert line in shown
    file.write_text("engine: {model: m}\nupstreams: [{url: 'http://a'}]\n")
    assert main(["serve", "--config", str(file), "--dry-run"]) == 1
    assert "engines that run (upstreams) and one to be started" in capsys.readouterr().err


def test_a_new_key_opens_what_its_digest_is_configured_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["key", "--tenant", "acme", "--max-concurrent", "4"]) == 0
    made = capsys.readouterr()
    (tmp_path / "agentspec.yaml").write_text(made.err)
    with serving("--config", str(tmp_path / "agentspec.yaml"), "--draft", "off") as (_, url):
        assert httpx.get(f"{url}/models").status_code == 401
        for headers in ({"authorization": f"Bearer {made.out.strip()}"}, {"x-api-key": made.out.strip()}):
            assert httpx.get(f"{url}/models", headers=headers).status_code == 200
