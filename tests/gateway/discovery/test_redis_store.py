"""Discovered stages in a server: what differs from a file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis

from agentspec.commands.serve.settings import discovery_of
from agentspec.gateway.discovery.redis_store import RedisDiscoveryStore
from agentspec.gateway.discovery.service import Discovery
from agentspec.gateway.settings import DiscoverySettings, Settings
from tests.corpus.support.redis_server import running, running_at
from tests.gateway.support.discovering_processes import run_two
from tests.support.ports import reserved_port

SECRET = "tomorrow"


def body(system: str, user: str = "Hello.") -> dict[str, Any]:
    return {"messages": [{"role": "system", "content": system}, {"role": "user", "content": user}]}


@contextmanager
def discovering(url: str, **options: Any) -> Iterator[Discovery]:
    store = RedisDiscoveryStore(url, **options)
    with closing(Discovery(DiscoverySettings(**options), store, in_background=False)) as discovery:
        yield discovery


def stage(discovery: Discovery, asked: dict[str, Any], tenant: str = "acme") -> str | None:
    discovery.stage_of(tenant, asked)
    discovery.catch_up()
    found = discovery.stage_of(tenant, asked)
    return found and found.name


def everything_in(url: str) -> bytes:
    with closing(redis.Redis.from_url(url)) as client:
        found = []
        for key in client.scan_iter("*"):
            held = client.type(key)
            if held == b"hash":
                found += [part for pair in client.hgetall(key).items() for part in pair]
            elif held == b"string":
                found.append(client.get(key))
        return b" ".join(found)


@contextmanager
def made(settings: Settings) -> Iterator[Discovery]:
    discovery = discovery_of(settings)
    assert discovery is not None
    with closing(discovery):
        yield discovery


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    with running(tmp_path) as port:
        yield f"redis://127.0.0.1:{port}/0"


def test_no_prompt_is_in_the_server(url: str) -> None:
    with discovering(url) as discovery:
        for number in range(8):
            stage(discovery, body("You plan.", f"{SECRET} {number}"))
    assert b"plan" in everything_in(url)
    assert SECRET.encode() not in everything_in(url)


def test_an_operator_can_keep_all_text_out_of_the_server(url: str) -> None:
    with discovering(url, keeps_text=False) as discovery:
        for number in range(8):
            stage(discovery, body("You arrange.", str(number)))
    assert b"You arrange" not in everything_in(url)


def test_tenants_never_share_a_stage(url: str) -> None:
    with discovering(url) as one, discovering(url) as other:
        name = stage(one, body("You plan."), "acme")
        [cluster] = one.clusters("acme")
        one.name("acme", cluster.id, "acme_agent/plan")
        other.save()
        assert stage(other, body("You plan."), "acme") == "acme_agent/plan"
        assert stage(other, body("You plan."), "umbrella") == name


def test_requests_of_all_gateways_are_summed(url: str) -> None:
    with discovering(url) as one, discovering(url) as other:
        for discovery in (one, other, one):
            for _ in range(5):
                stage(discovery, body("You plan."))
        one.save()
        other.save()
        one.save()
        [here], [there] = one.clusters("acme"), other.clusters("acme")
        assert here.num_requests == there.num_requests > 20


def test_a_server_that_is_away_loses_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with reserved_port() as port:
        url = f"redis://127.0.0.1:{port}/0"
        server = running_at(port, tmp_path)
        server.__enter__()
        with discovering(url) as discovery:
            stage(discovery, body("You plan."))
            server.__exit__(None, None, None)
            name = stage(discovery, body("You code."))
            assert name
            assert "can't be saved" in caplog.text
            with running_at(port, tmp_path):  # empty: all is written again only for what changed
                discovery.save()
                assert "again" in caplog.text
                with discovering(url) as other:
                    assert name in {one.stage.name for one in other.clusters("acme")}


def test_a_server_that_lost_its_content_gets_it_again(url: str) -> None:
    with discovering(url) as one, discovering(url) as other:
        stage(one, body("You plan."))
        [plan] = one.clusters("acme")
        one.name("acme", plan.id, "my/planner")
        one.pin("acme", plan.id, True)
        other.save()
        num_requests = plan.num_requests
        with closing(redis.Redis.from_url(url)) as client:
            client.flushall()
        stage(one, body("You code."))  # changes another cluster only
        other.save()
        one.save()
        [here], [there] = (
            [cluster.num_requests for cluster in each.clusters("acme") if cluster.is_pinned]
            for each in (one, other)
        )
        assert here == there == num_requests
        for discovery in (one, other):
            assert stage(discovery, body("You plan.")) == "my/planner"
        with discovering(url) as third:
            assert stage(third, body("You plan.")) == "my/planner"


def test_a_server_with_another_key_is_not_written(url: str, caplog: pytest.LogCaptureFixture) -> None:
    with discovering(url) as one:
        stage(one, body("You plan."))
        with closing(redis.Redis.from_url(url)) as client:
            client.flushall()
        with discovering(url):  # it began with an empty server
            one.save()
        assert "restart this gateway" in caplog.text
        assert stage(one, body("You plan."))


def test_a_server_that_never_was_there_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with reserved_port() as port, discovering(f"redis://127.0.0.1:{port}/0") as discovery:
        assert stage(discovery, body("You plan."))
        assert caplog.text.count("can't be saved") == 1


def test_a_gateway_that_died_holds_up_the_others_for_seconds_only(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    dead = RedisDiscoveryStore(url)
    dead.begin()  # it never ends
    with discovering(url) as discovery:  # reads: waits, and goes on without
        assert "another gateway holds the lock" in caplog.text
        name = stage(discovery, body("You plan."))
        with closing(redis.Redis.from_url(url)) as client:
            assert 0 < client.pttl("agentspec:{gateway}:discovery:lock") <= 5_000
            client.delete("agentspec:{gateway}:discovery:lock")  # as the time will
        discovery.save()
        with discovering(url) as other:
            assert name in {one.stage.name for one in other.clusters("acme")}
        dead.commit([])  # its lock is lost: nothing is written
    dead.close()


def test_two_processes_agree(url: str) -> None:
    run_two(
        f"Discovery(DiscoverySettings(max_clusters=20), RedisDiscoveryStore({url!r}), in_background=False)"
    )
    with discovering(url) as discovery:
        members = [digest for cluster in discovery.clusters("acme") for digest in cluster.members]
        assert len(members) == len(set(members)) > 0


def test_gateways_with_a_store_keep_their_stages_there(url: str, tmp_path: Path) -> None:
    shared = Settings.model_validate({"sharing": {"store": url}})
    file = {"path": str(tmp_path / "stages.sqlite")}
    alone = Settings.model_validate({"sharing": {"store": url}, "discovery": file})
    with made(shared) as discovery:
        stage(discovery, body("You plan."))
    with made(shared) as discovery:
        assert len(discovery.clusters("acme")) == 1
    with made(alone) as discovery:
        assert not discovery.clusters("acme")


def test_a_url_that_is_none_is_named() -> None:
    with pytest.raises(Exception, match="'http://x' is no URL of a Redis server"):
        RedisDiscoveryStore("http://x")
