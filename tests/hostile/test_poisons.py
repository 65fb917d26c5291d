"""A foreign value in a store costs its tenant drafts, and nobody else anything. All can still be erased."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import redis

from agentspec.cli import main
from agentspec.corpus.store import open_store
from tests.corpus.support.redis_server import running
from tests.corpus.support.replica import Replica, output
from tests.hostile.poisons import REDIS, SQLITE, RedisPoison, SqlitePoison

Poison = RedisPoison | SqlitePoison


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with running(tmp_path_factory.mktemp("redis")) as port:
        yield port


def location_of(request: pytest.FixtureRequest, poison: Poison, folder: Path) -> str:
    if isinstance(poison, SqlitePoison):
        return str(folder / "corpus")
    port = request.getfixturevalue("port")
    with redis.Redis(port=port) as client:
        client.flushall()
    return f"redis://127.0.0.1:{port}/0"


def apply(poison: Poison, location: str) -> None:
    if isinstance(poison, SqlitePoison):
        poison.apply(f"{location}/corpus.sqlite")
        return
    with redis.Redis.from_url(location) as client:
        (log,) = client.keys("*:acme}:log")
        poison.apply(client, log.decode())


def finish(writer: Replica, *tokens: int) -> None:
    for tenant in ("acme", "globex"):
        writer.finish(output(tokens, tenant=tenant))
    writer.pump()


def outputs(replica: Replica, tenant: str) -> set[tuple[int, ...]]:
    return {tokens for _, tokens in replica.held(tenant)}


def corpus(action: str, location: str, *arguments: str) -> int:
    return main(["corpus", action, "--corpus", location, *arguments])


@pytest.mark.parametrize("poison", [*REDIS, *SQLITE], ids=lambda poison: poison.name.replace("/", "_"))
def test_a_foreign_value(
    request: pytest.FixtureRequest, poison: Poison, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    location = location_of(request, poison, tmp_path)
    with closing(open_store(location)) as store, closing(open_store(location)) as other:
        writer = Replica(store, "writer")
        running, late = Replica(other, "running"), Replica(other, "late", joined=())
        finish(writer, 1)
        assert writer.keeper._writer.write("acme")
        finish(writer, 2)
        running.learn()
        apply(poison, location)

        for replica in (running, late):
            replica.learn()  # raises nothing
        assert outputs(late, "globex") == (set() if poison.hides_tenants else {(1,), (2,)})
        finish(writer, 3)
        finish(writer, 4)
        for replica in (running, late):
            replica.learn()
            assert outputs(replica, "globex") == {(1,), (2,), (3,), (4,)}
            assert outputs(replica, "acme") >= {(4,)} or "epoch" in poison.name
        for replica in (writer, running, late):
            replica.keeper.step()

        assert corpus("stats", location) in (0, 1)
        assert corpus("forget", location, "--tenant", "globex", "--stage", "plan", "--yes") == 0
        assert corpus("forget", location, "--tenant", "acme", "--yes") == 0
        for replica in (running, late):
            replica.learn()
            assert replica.held("acme") == replica.held("globex") == {}
        finish(writer, 5)  # it meets the erasures
        writer.learn()
        finish(writer, 6)
        running.learn()
        assert outputs(running, "acme") >= {(6,)}
        assert outputs(running, "globex") >= {(6,)}
    assert "Traceback" not in capsys.readouterr().err
