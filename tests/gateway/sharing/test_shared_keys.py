"""API keys in the store that gateways share: real gateways, a real store, and the real command."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import httpx2 as httpx
import pytest
import redis

from agentspec.cli import build_parser
from agentspec.commands.serve.options import ServeOptions
from agentspec.commands.serve.settings import runtime_config_of
from agentspec.commands.serve.vllm_engine import _check_no_gateway
from agentspec.errors import ConfigError
from agentspec.gateway import EmbeddedUpstream
from agentspec.gateway.app import create_app
from agentspec.gateway.auth.api_keys import ApiKeys, RuntimeConfig
from agentspec.gateway.http.cancellation import GracefulShutdown
from agentspec.gateway.settings import Settings, SharingSettings
from agentspec.gateway.sharing.service import Sharing
from agentspec.gateway.sharing.store import KEYS, KEYS_VERSION
from tests.corpus.support.redis_server import running
from tests.gateway.support.live import serving_app
from tests.gateway.support.scripted import ScriptedEngine

WAIT_S = 30.0
MODELS = "/v1/models"


def run_command(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "agentspec", "key", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def status(url: str, key: str | None) -> int:
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    return httpx.get(url + MODELS, headers=headers).status_code


def until(is_so: Callable[[], bool]) -> None:
    end_s = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < end_s
        time.sleep(0.02)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running(tmp_path_factory.mktemp("store")) as port:
        yield f"redis://127.0.0.1:{port}/0"


@pytest.fixture(scope="module")
def gateways(store: str) -> Iterator[list[str]]:
    """Yield the URLs of two gateways that accept the store's keys."""
    with ExitStack() as stack:
        urls = []
        for _ in range(2):
            sharing = Sharing(SharingSettings(store=store, keys=True), beat_s=0.05, call_timeout_s=WAIT_S)
            runtime = RuntimeConfig(ApiKeys(make_limits=sharing.limits_of, are_needed=True))
            shutdown = GracefulShutdown()
            upstream = EmbeddedUpstream(ScriptedEngine())
            app = create_app(upstream, runtime=runtime, shutdown=shutdown, sharing=sharing)
            urls.append(stack.enter_context(serving_app(app, shutdown, runtime=runtime)))
        yield urls


def test_a_key_in_the_store_opens_all_gateways_until_it_is_revoked(store: str, gateways: list[str]) -> None:
    assert [status(url, None) for url in gateways] == [401, 401]
    made = run_command("--store", store, "--tenant", "acme", "--max-concurrent", "7")
    key, digest = made.stdout.strip(), made.stderr.split()[-1]
    until(lambda: [status(url, key) for url in gateways] == [200, 200])
    assert run_command("--store", store, "--list").stdout.split() == [digest, "acme", "max_concurrent=7"]
    assert run_command("--store", store, "--revoke", digest).returncode == 0
    until(lambda: [status(url, key) for url in gateways] == [401, 401])
    again = run_command("--store", store, "--revoke", digest)
    assert again.returncode != 0
    assert digest in again.stderr


def test_a_limit_in_the_store_holds_over_all_gateways(store: str, gateways: list[str]) -> None:
    key = run_command("--store", store, "--requests-per-minute", "6").stdout.strip()
    until(lambda: all(status(url, key) != 401 for url in gateways))
    begin_s = time.monotonic()
    statuses = [status(url, key) for url in gateways * 10]
    figures = httpx.get(gateways[0] + "/metrics").text
    assert "agentspec_gateways 2.0" in figures
    assert "agentspec_gateway_store_up 1.0" in figures
    assert set(statuses) == {200, 429}
    assert 2 <= statuses.count(200) <= 6 + (time.monotonic() - begin_s) * 6 / 60


def test_a_malformed_key_is_refused_and_the_others_stay(
    store: str, gateways: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    key = run_command("--store", store).stdout.strip()
    with closing(redis.Redis.from_url(store)) as client:
        client.hset(KEYS, "ab" * 32, '{"sha256": "short", "tenant": "acme"}')
        client.hset(KEYS, "cd" * 32, "no JSON")
        client.set(KEYS_VERSION, "another")
    assert "malformed" in run_command("--store", store, "--list").stdout
    until(lambda: "abababab" in caplog.text and "cdcdcdcd" in caplog.text)
    until(lambda: [status(url, key) for url in gateways] == [200, 200])


def test_keys_of_a_store_that_lost_its_content_are_refused(store: str, gateways: list[str]) -> None:
    old = run_command("--store", store).stdout.strip()
    until(lambda: [status(url, old) for url in gateways] == [200, 200])
    with closing(redis.Redis.from_url(store)) as client:
        client.delete(KEYS, KEYS_VERSION)
    new = run_command("--store", store).stdout.strip()  # as many changes as before
    until(lambda: [status(url, new) for url in gateways] == [200, 200])
    assert [status(url, old) for url in gateways] == [401, 401]


def test_a_reload_neither_closes_nor_opens_a_gateway(store: str) -> None:
    def settings(keys: bool) -> Settings:
        return Settings.model_validate({"sharing": {"store": store, "keys": keys}})

    args, unknown = build_parser().parse_known_args(["serve"])
    args.unknown = unknown
    options = ServeOptions.of(args)
    for at_start in (True, False):
        runtime = runtime_config_of(settings(at_start), options)
        for later in (True, False):
            runtime = runtime_config_of(settings(later), options, runtime)
            assert bool(runtime.keys) is at_start


@pytest.mark.parametrize("flag", ["--zero-hop", "--engine-only"])
def test_without_a_gateway_nothing_is_shared(flag: str, store: str) -> None:
    settings = Settings.model_validate({"sharing": {"store": store, "keys": True}})
    with pytest.raises(ConfigError, match="leave sharing out"):
        _check_no_gateway(flag, settings)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--list"], "give --store"),
        (["--store", "redis://127.0.0.1:1/0"], "can't be used now"),
        (["--store", "http://127.0.0.1:1/0"], "is no URL of a Redis server"),
        (["--store", "redis://127.0.0.1:1/0", "--admin"], "leave --store out"),
        (["--store", "redis://127.0.0.1:1/0", "--revoke", "secret"], "is no SHA-256"),
    ],
)
def test_what_is_wrong_is_named(arguments: list[str], reason: str) -> None:
    failed = run_command(*arguments)
    assert failed.returncode != 0
    assert reason in failed.stderr
    assert not failed.stdout


def test_shared_keys_need_a_store(tmp_path: Path) -> None:
    config = tmp_path / "agentspec.yaml"
    config.write_text("sharing: {keys: true}\n")
    command = [sys.executable, "-m", "agentspec", "serve", "--dry-run", "--config", str(config)]
    failed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert failed.returncode != 0
    assert "sharing.keys needs sharing.store" in failed.stderr
