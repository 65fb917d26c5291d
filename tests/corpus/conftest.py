"""Stores of both kinds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import redis

from agentspec.corpus.store import CorpusStore, open_store
from tests.corpus.support.redis_server import running


@pytest.fixture(scope="session")
def redis_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with running(tmp_path_factory.mktemp("redis")) as port:
        yield port


@pytest.fixture
def redis_url(redis_port: int) -> str:
    """Return the URL of an empty server."""
    with redis.Redis(port=redis_port) as client:
        client.flushall()
    return f"redis://127.0.0.1:{redis_port}/0"


@pytest.fixture(params=["sqlite", "redis"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the place of an empty store."""
    if request.param == "redis":
        url: str = request.getfixturevalue("redis_url")
        return url
    return str(tmp_path / "corpus")


@pytest.fixture
def store(location: str) -> Iterator[CorpusStore]:
    with closing(open_store(location)) as store:
        yield store
