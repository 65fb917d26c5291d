"""Changes of configuration that a running ``agentspec serve`` applies, and those that it refuses."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest

from agentspec.commands.serve.command import add_options
from agentspec.commands.serve.options import ServeOptions
from agentspec.commands.serve.reload import RunningSettings
from agentspec.commands.serve.settings import fleet_of, read_settings, runtime_config_of
from agentspec.errors import ConfigError
from agentspec.gateway import Fleet
from agentspec.gateway.config_file import Reload
from agentspec.gateway.errors import AuthError
from agentspec.gateway.settings import Settings
from tests.support.serving import serving

ENGINE = "upstreams: [{url: 'http://127.0.0.1:9', api_key: s3cret}]\n"
OPERATOR = "admin_key_sha256: " + sha256(b"boss").hexdigest() + "\n"
# one possible change of each setting that takes effect immediately
LIVE = {
    "keys": f"keys: [{{sha256: {sha256(b'other').hexdigest()}, tenant: other}}]",
    "admin_key_sha256": "admin_key_sha256: " + sha256(b"chief").hexdigest(),
    "limits.head_s": "limits: {head_s: 3}",
    "upstreams": "upstreams: [{url: 'http://127.0.0.1:10'}]",
    "routing.spill": "routing: {spill: 3}",
    "timeouts.queue_s": "timeouts: {queue_s: 3}",
    "retries.num_retries": "retries: {num_retries: 3}",
    "health.timeout_s": "health: {timeout_s: 3}",
    "server.log_level": "server: {log_level: debug}",
    "server.allow_open": "server: {allow_open: true}",
    "server.cors_origins": "server: {cors_origins: ['https://app.example']}",
}


def keys(*names: str) -> str:
    entries = (f"{{sha256: {sha256(name.encode()).hexdigest()}, tenant: {name}}}" for name in names)
    return f"keys: [{', '.join(entries)}]\n"


class Running:
    """The settings of a gateway under ``agentspec serve --config``, without the server."""

    def __init__(self, file: Path, text: str, *options: str) -> None:
        self.file = file
        file.write_text(text)
        parser = argparse.ArgumentParser()
        add_options(parser)
        args = parser.parse_args(["--config", str(file), *options])
        args.unknown = args.flags = ()
        given = ServeOptions.of(args)
        settings = read_settings(given)
        self.runtime = runtime_config_of(settings, given)
        self.fleet = Fleet(fleet_of(settings, settings.upstreams, self.runtime))
        self.applied: list[Any] = []
        self.fleet.apply = self.applied.append
        self.settings = RunningSettings(given, settings, self.fleet, self.runtime)

    def become(self, text: str) -> None:
        self.file.write_text(text)
        self.settings.read(self.file.read_bytes())()

    def state(self) -> tuple[object, ...]:
        runtime = self.runtime
        return (
            runtime.keys,
            runtime.admin_key,
            runtime.limits,
            runtime.cors_origins,
            logging.getLogger().level,
        )


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "agentspec.yaml"


@pytest.fixture(autouse=True)
def log_level() -> Iterator[None]:
    before = logging.getLogger().level
    yield
    logging.getLogger().setLevel(before)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (ENGINE + OPERATOR, "no API key is left"),
        (ENGINE + keys("acme"), "operator's key is missing"),
        (ENGINE, "no API key is left"),
        (keys("acme") + OPERATOR, "no upstream is left"),
        ("", "no upstream is left"),
        (ENGINE + keys("acme", "../x") + OPERATOR + "server: {log_level: loud}", "log_level"),
        ("server:", "server"),
    ],
)
def test_a_file_that_would_open_the_gateway_changes_nothing(file: Path, text: str, said: str) -> None:
    running = Running(file, ENGINE + keys("acme", "bolt") + OPERATOR)
    before = running.state()
    with pytest.raises(ConfigError, match=said):
        running.become(text + "\nlimits: {head_s: 7}\n" if text else text)
    assert running.state() == before
    assert not running.applied


def test_every_shorter_piece_of_a_file_keeps_it_closed(file: Path) -> None:
    whole = (ENGINE + OPERATOR + keys("acme", "bolt")).encode()
    running = Running(file, whole.decode())
    for size in range(len(whole)):
        file.write_bytes(whole[:size])
        with suppress(ConfigError):
            running.settings.read(whole[:size])()
        assert running.runtime.keys
        assert running.runtime.admin_key is not None


def test_the_gateway_opens_where_that_is_meant(file: Path) -> None:
    running = Running(file, ENGINE + keys("acme") + OPERATOR)
    running.become(ENGINE + "server: {allow_open: true}")
    assert not running.runtime.keys
    assert running.runtime.admin_key is None


def test_keys_of_the_command_line_stay(file: Path) -> None:
    running = Running(file, ENGINE + keys("acme"), "--api-key", "mine=bolt", "--admin-key", "boss")
    running.become(ENGINE)
    assert running.runtime.keys.principal("mine").tenant == "bolt"
    assert running.runtime.admin_key is not None


def test_an_open_address_stays_refused_while_it_is_listened_on(file: Path) -> None:
    running = Running(file, ENGINE + "server: {host: 0.0.0.0, allow_open: true}")
    with pytest.raises(ConfigError, match=r"'0\.0\.0\.0' can be reached"):
        running.become(ENGINE + "server: {host: 127.0.0.1}")


@pytest.mark.parametrize("name", LIVE)
def test_what_holds_now_is_put_into_force_and_needs_no_restart(
    file: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    group = name.partition(".")[0]
    parts = {"upstreams": ENGINE, "keys": keys("acme"), "admin_key_sha256": OPERATOR}
    running = Running(file, "".join(parts.values()))
    before = running.state()
    running.become("".join(text for part, text in parts.items() if part != group) + LIVE[name])
    fleets = [running.fleet._settings, *running.applied]
    assert running.state() != before or fleets[0] != fleets[-1] or name == "server.allow_open"
    assert "restart" not in caplog.text


def test_a_new_group_needs_a_restart_or_is_tested_above(file: Path) -> None:
    is_live = Running(file, ENGINE).settings._is_live
    assert {name for name in Settings.model_fields if is_live(name)} | {"server"} == {
        name.partition(".")[0] for name in LIVE
    }
    assert not any(is_live(f"server.{name}") for name in ("host", "port", "grace_s", "record"))


def test_the_log_names_what_changed_and_what_waits(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    running = Running(file, ENGINE + keys("acme", "bolt", "cora"))
    running.become(
        ENGINE.replace("s3cret", "other")
        + keys("acme")
        + "server: {port: 81, grace_s: 9}\nrouting: {spill: 3}\nlimits: {unread_s: 5}\ndiscovery: null\n"
        + "engine: {}\n"
    )
    told = {(one.levelname, one.getMessage()) for one in caplog.records}
    assert ("WARNING", "the API keys changed: 3 before, 1 now") in told
    assert ("INFO", "changed: routing.spill: 1.25 -> 3.0") in told
    (waiting,) = (text for level, text in told if "restart" in text)
    for one in ("server.port: 8000 -> 81", "server.grace_s: 5.0 -> 9.0", "limits.unread_s: 60.0 -> 5.0"):
        assert one in waiting
    assert "discovery: " in waiting
    assert "spill" not in waiting
    assert "s3cret" not in caplog.text
    caplog.clear()
    running.become(ENGINE + keys("acme"))  # restored: no change is pending
    assert "restart" not in caplog.text


def opened(running: Running, *names: str) -> list[str]:
    """Return which keys of :func:`keys` are valid."""

    def is_valid(name: str) -> bool:
        with suppress(AuthError):
            return running.runtime.keys.principal(name).tenant == name
        return False

    return [name for name in names if is_valid(name)]


BAD = "limits: {head_s: -1}\n"
BROKEN = "limits: {head_s: [\n"
WHOLE = keys("acme", "bolt", "cora")


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (keys("acme") + BAD, ["acme"]),
        (BAD + keys("acme"), ["acme"]),
        (keys("acme") + BROKEN, ["acme"]),
        (keys("acme") + BROKEN + "routing: {spill: 2}\n" + BAD, ["acme"]),
        (keys("acme", "new") + BAD, ["acme"]),  # none is added
        (WHOLE + BAD, ["acme", "bolt", "cora"]),
        (keys("acme", "bolt").replace("tenant: acme", "tenant: other") + BAD, ["bolt"]),
        (BROKEN + keys("acme"), ["acme", "bolt", "cora"]),
        (keys("acme").removesuffix("]\n") + "\n" + BAD, ["acme", "bolt", "cora"]),
        (keys("acme") + "keys: []\n", ["acme"]),  # the second list is the mistake
        (keys("acme").replace("sha256", "sha") + BAD, ["acme", "bolt", "cora"]),
        (keys("acme").replace("tenant: acme", "requests_per_minute: many") + BAD, ["acme", "bolt", "cora"]),
        ("keys: [{sha256: '${NOTHING_HERE}'}]\n" + BAD, ["acme", "bolt", "cora"]),
        ("keys: []\n" + BAD, []),
        ("keys:\n" + BAD, ["acme", "bolt", "cora"]),
        (BAD, ["acme", "bolt", "cora"]),
        (BROKEN, ["acme", "bolt", "cora"]),
        ("", ["acme", "bolt", "cora"]),
    ],
)
def test_a_file_with_mistakes_revokes_the_keys_that_it_no_longer_lists(
    file: Path, text: str, left: list[str]
) -> None:
    running = Running(file, ENGINE + WHOLE + OPERATOR, "--api-key", "mine=bolt")
    before = running.state()[1:]
    running.settings.salvage((ENGINE + text).encode())()
    assert opened(running, "acme", "bolt", "cora", "new") == left
    assert running.runtime.keys.principal("mine").tenant == "bolt"
    assert running.state()[1:] == before
    assert not running.applied
    running.become(ENGINE + WHOLE + OPERATOR)  # mended
    assert opened(running, "acme", "bolt", "cora") == ["acme", "bolt", "cora"]


def test_no_revocation_opens_the_gateway(file: Path) -> None:
    running = Running(file, ENGINE + keys("acme") + OPERATOR)
    running.settings.salvage((ENGINE + keys("new") + BAD).encode())()
    assert opened(running, "acme", "new") == ["acme"]
    assert running.runtime.keys


class Log:
    """Steps of a reload that only write down what they are given. A content with "bad" is bad.

    After ``num_wanted`` versions the reload is cancelled.
    """

    num_wanted = 0

    def __init__(self, file: Path) -> None:
        self.tried: list[str] = []
        self.in_force: list[str] = []
        self.salvaged: list[str] = []
        self.reload = Reload(file, self.read, self.salvage)

    def read(self, raw: bytes) -> Callable[[], None]:
        self.tried.append(raw.decode())
        if b"bad" in raw:
            raise ConfigError("bad")
        return lambda: self.put(raw.decode())

    def put(self, text: str) -> None:
        self.in_force.append(text)
        if len(self.in_force) == self.num_wanted:
            raise asyncio.CancelledError

    def salvage(self, raw: bytes) -> Callable[[], None]:
        return lambda: self.salvaged.append(raw.decode())


def test_a_file_is_read_when_two_looks_found_it_the_same(file: Path) -> None:
    file.write_text("one")
    log = Log(file)
    assert log.reload.look() is None
    file.write_text("half")  # a save in two writes
    assert log.reload.look() is None
    file.write_text("half and half")
    assert log.reload.look() is None
    version = log.reload.look()
    assert version is not None
    asyncio.run(log.reload.read(version))
    assert log.in_force == ["half and half"]
    assert [log.reload.look(), log.reload.look()] == [None, None]
    file.unlink()
    assert log.reload.look() is None
    gone = log.reload.look()
    assert gone is not None
    asyncio.run(log.reload.read(gone))
    assert (log.tried, log.salvaged) == (["half and half"], [])


def test_versions_that_signals_asked_for_are_all_read_in_order(file: Path) -> None:
    file.write_text("start")
    log = Log(file)
    for text in ("first", "bad", "first again"):
        file.write_text(text)
        log.reload.ask(log.reload.version())

    log.num_wanted = 2
    with suppress(asyncio.CancelledError):
        asyncio.run(log.reload.run())
    assert log.tried == ["first", "bad", "first again"]
    assert log.in_force == ["first", "first again"]
    assert log.salvaged == ["bad"]


def test_no_version_that_was_in_force_comes_back(file: Path) -> None:
    """A key that a version revoked stays revoked, however the version was asked for."""
    file.write_text("first")
    log = Log(file)
    for text, is_asked in (
        ("second", True),
        ("bad", True),
        ("third", False),
        ("bad again", False),
        ("bad", True),
    ):
        file.write_text(text)
        version = log.reload.version() if is_asked else log.reload.look() or log.reload.look()
        assert version is not None
        asyncio.run(log.reload.read(version))
        assert log.reload.look() is None
    assert log.in_force == ["second", "third"]


def test_a_revoked_key_stays_out_when_the_next_version_is_bad(file: Path) -> None:
    def opens(name: str) -> bool:
        given = {"authorization": f"Bearer {name}"}
        return httpx.get(f"{root}/v1/models", headers=given, trust_env=False).status_code == 200

    file.write_text(keys("acme", "bolt") + OPERATOR)
    with serving("--config", str(file), "--draft", "off") as (process, url):
        root = url.removesuffix("/v1")
        assert process.stderr is not None
        assert [opens("acme"), opens("bolt")] == [True, True]
        for text in (keys("acme") + OPERATOR, keys("acme") + OPERATOR + BROKEN):
            file.write_text(text)
            os.kill(process.pid, signal.SIGHUP)
        next(line for line in process.stderr if "stays as it was" in line)
        while opens("bolt"):  # a moment later
            pass
        assert opens("acme")


def test_a_running_gateway_stays_closed_when_its_file_is_cut_off(file: Path) -> None:
    file.write_text("server: {log_level: info}\n" + keys("acme") + OPERATOR)
    with serving("--config", str(file), "--draft", "off") as (process, url):
        root = url.removesuffix("/v1")
        file.write_text("server: {log_level: info}\n")
        os.kill(process.pid, signal.SIGHUP)
        assert process.stderr is not None
        refused = next(line for line in process.stderr if "stays as it was" in line)
        assert "no API key is left" in refused
        assert httpx.get(f"{root}/v1/models").status_code == 401
        assert httpx.post(f"{root}/agentspec/save").status_code == 401
