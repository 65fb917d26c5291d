"""Limits that several gateways share, with a real store."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis

from agentspec.gateway.auth.api_keys import ApiKey, ApiKeys, RuntimeConfig, digest_of
from agentspec.gateway.call import RateLimits
from agentspec.gateway.discovery.redis_store import RedisDiscoveryStore
from agentspec.gateway.errors import RateLimitError
from agentspec.gateway.settings import SharingSettings
from agentspec.gateway.sharing.service import Sharing
from tests.corpus.support.redis_server import running, running_at
from tests.support.ports import reserved_port

WAIT_S = 30.0  # a busy machine
BEAT_S = 0.05


class Gateway:
    """One gateway's view of the limits of one key."""

    def __init__(
        self, store: str, key: ApiKey, *, ttl_s: float = 60.0, call_timeout_s: float = WAIT_S
    ) -> None:
        self.sharing = Sharing(
            SharingSettings(store=store), beat_s=BEAT_S, ttl_s=ttl_s, call_timeout_s=call_timeout_s
        )
        self.runtime = RuntimeConfig(ApiKeys([key], make_limits=self.sharing.limits_of))
        self._running: list[AbstractContextManager[None]] = []

    @property
    def limits(self) -> RateLimits:
        return self.runtime.keys.principal("secret").limits

    @property
    def num_running(self) -> int:
        return len(self._running)

    async def begin(self) -> bool:
        """Begin a request as the handler does. Return False if it is refused."""
        limits = self.limits
        if limits.is_short:
            await limits.take_more()
        request = limits.admitted()
        try:
            request.__enter__()
        except RateLimitError:
            return False
        self._running.append(request)
        return True

    async def begin_some(self, number: int) -> bool:
        """Begin requests. Return False if one of them is refused."""
        return all([await self.begin() for _ in range(number)])

    def end(self) -> None:
        self._running.pop().__exit__(None, None, None)

    async def __aenter__(self) -> Gateway:
        await self.sharing.start(self.runtime)
        return self

    async def __aexit__(self, *_: object) -> None:
        while self._running:
            self.end()
        await self.sharing.close()


def key(requests_per_minute: int | None = None, max_concurrent: int | None = None) -> ApiKey:
    return ApiKey(digest_of("secret"), "acme", requests_per_minute, max_concurrent)


@asynccontextmanager
async def two(store: str, shared: ApiKey, **options: Any) -> AsyncIterator[tuple[Gateway, Gateway]]:
    async with Gateway(store, shared, **options) as a, Gateway(store, shared, **options) as b:
        yield a, b


@contextmanager
def client(store: str) -> Iterator[Any]:
    with closing(redis.Redis.from_url(store)) as opened:
        yield opened


def limits_in(store: str) -> list[bytes]:
    with client(store) as opened:
        return list(opened.scan_iter("agentspec:*limit:*"))


def held_until_ms(store: str) -> list[int]:
    """Return when each gateway's part of a limit would be free."""
    (limit,) = limits_in(store)
    with client(store) as opened:
        held = opened.hgetall(limit)
    return [int(value.split()[1]) for name, value in held.items() if name.startswith(b"slot:")]


async def until(is_so: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not await is_so():  # noqa: ASYNC110 (another process changes it)
            await asyncio.sleep(BEAT_S / 4)


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(test)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[str]:
    with running(tmp_path) as port:
        yield f"redis://127.0.0.1:{port}/0"


def test_requests_at_a_time_are_counted_over_all_gateways(store: str) -> None:
    async def test() -> None:
        async with two(store, key(max_concurrent=3)) as (a, b):
            assert await a.begin_some(2)
            assert await b.begin()
            assert not await a.begin()
            assert not await b.begin()
            a.end()
            await until(b.begin)
            assert (a.num_running, b.num_running) == (1, 2)
            assert not await a.begin()

    run(test())


def test_a_minutes_requests_are_counted_over_all_gateways(store: str) -> None:
    async def test() -> None:
        begin_s = time.monotonic()
        async with two(store, key(requests_per_minute=100)) as (a, b):
            admitted = 0
            for gateway in (a, b) * 300:
                admitted += await gateway.begin()
            await until(a.begin)  # what b took in advance comes back
            most = 100 + (time.monotonic() - begin_s) * 100 / 60
            assert 90 <= admitted <= a.num_running + b.num_running <= most

    run(test())


def test_one_gateway_may_use_all_if_the_other_is_idle(store: str) -> None:
    async def test() -> None:
        async with two(store, key(requests_per_minute=50, max_concurrent=50)) as (a, _):
            assert await a.begin_some(50)
            assert not await a.begin()

    run(test())


def test_no_sequence_of_requests_exceeds_the_limit(store: str) -> None:
    async def test() -> None:
        chosen = random.Random(5)
        shared = key(max_concurrent=4)
        async with two(store, shared) as (a, b), Gateway(store, shared) as c:
            gateways = (a, b, c)

            async def use(gateway: Gateway) -> None:
                for _ in range(150):
                    if gateway.num_running and chosen.random() < 0.5:
                        gateway.end()
                    else:
                        await gateway.begin()
                    assert sum(one.num_running for one in gateways) <= 4
                    await asyncio.sleep(chosen.random() / 500)

            await asyncio.gather(*(use(one) for one in gateways for _ in range(2)))
            assert all(one.sharing.num_gateways == 3 for one in gateways)

    run(test())


def test_requests_that_arrive_at_once_share_the_room(store: str) -> None:
    async def test() -> None:
        async with two(store, key(max_concurrent=5)) as (a, b):
            begun = await asyncio.gather(*(gateway.begin() for gateway in (a, b) * 10))
            assert sum(begun) == 5

    run(test())


def test_what_a_dead_gateway_held_is_free_later(store: str) -> None:
    async def test() -> None:
        dead = Gateway(store, key(max_concurrent=2), ttl_s=0.5)
        await dead.sharing._beat(dead.runtime)  # it never beats again
        assert await dead.begin_some(2)
        async with Gateway(store, key(max_concurrent=2)) as alive:
            await until(alive.begin)
            await until(alive.begin)
            assert not await alive.begin()
        await dead.sharing._store.close()

    run(test())


def test_what_is_in_use_stays_held(store: str) -> None:
    async def test() -> None:
        async with two(store, key(max_concurrent=1)) as (a, b):
            assert await a.begin()
            first_ms = max(held_until_ms(store))
            await until(_is(lambda: max(held_until_ms(store)) > first_ms))
            assert not await b.begin()

    run(test())


def test_a_gateway_that_ends_gives_everything_back(store: str) -> None:
    async def test() -> None:
        async with Gateway(store, key(requests_per_minute=600, max_concurrent=1)) as a:
            assert await a.begin()
        async with Gateway(store, key(requests_per_minute=600, max_concurrent=1)) as b:
            assert await b.begin()
        (limit,) = limits_in(store)
        with client(store) as opened:
            assert float(opened.hget(limit, "left")) > 597

    run(test())


def test_changed_limits_count_what_runs_already(store: str) -> None:
    async def test() -> None:
        async with two(store, key(max_concurrent=4)) as (a, b):
            assert await a.begin_some(4)
            runtime = a.runtime
            runtime.keys = ApiKeys([key(requests_per_minute=600, max_concurrent=4)], runtime.keys)  # a reload
            for _ in range(10):
                assert not await a.begin()
                assert not await b.begin()
                await asyncio.sleep(BEAT_S)
            a.end()
            await until(b.begin)

    run(test())


def test_a_key_over_its_limit_does_not_ask_the_store_each_time(store: str) -> None:
    async def test() -> None:
        async with Gateway(store, key(requests_per_minute=2)) as a:
            with client(store) as opened:
                before = opened.info("commandstats")["cmdstat_eval"]["calls"]
                begin_s = time.monotonic()
                assert not await a.begin_some(500)
                calls = opened.info("commandstats")["cmdstat_eval"]["calls"] - before
            assert calls < 10 + (time.monotonic() - begin_s) * (2 / BEAT_S + 2)

    run(test())


def test_a_user_with_the_documented_rights_is_enough(store: str) -> None:
    text = (Path(__file__).parents[3] / "docs" / "gateway.md").read_text()
    begin = text.index("ACL SETUSER gateways")
    command = text[begin : text.index("```", begin)].split()
    with client(store) as opened:
        opened.execute_command(*command)
    url = store.replace("redis://", "redis://gateways:PASSWORD@")

    async def test() -> None:
        async with two(url, key(100, 2)) as (a, b):
            assert await a.begin_some(2)
            assert not await b.begin()
            assert not a.sharing.is_away
            assert not b.sharing.is_away

    run(test())
    discovery = RedisDiscoveryStore(url)
    discovery.begin()
    assert discovery.news() == {}
    discovery.commit([])
    assert discovery.key
    discovery.close()


def test_keys_without_limits_never_ask_the_store(store: str) -> None:
    async def test() -> None:
        async with Gateway(store, key()) as a:
            assert not a.limits.is_short
            assert await a.begin_some(100)
        assert not limits_in(store)

    run(test())


def test_without_a_store_each_gateway_admits_its_share(tmp_path: Path) -> None:
    async def test(port: int) -> None:
        url = f"redis://127.0.0.1:{port}/0"
        server = running_at(port, tmp_path)
        server.__enter__()
        async with two(url, key(max_concurrent=4)) as (a, b):
            await until(_is(lambda: a.sharing.num_gateways == b.sharing.num_gateways == 2))
            server.__exit__(None, None, None)
            await until(_is(lambda: a.sharing.is_away and b.sharing.is_away))
            for gateway in (a, b):
                assert await gateway.begin_some(2)
                assert not await gateway.begin()
            with running_at(port, tmp_path):
                await until(_is(lambda: not (a.sharing.is_away or b.sharing.is_away)))
                assert not await a.begin()
                b.end()
                await until(a.begin)

    with reserved_port() as port:
        run(test(port))


def test_a_store_that_never_was_there_stops_no_request() -> None:
    async def test(port: int) -> None:
        async with Gateway(f"redis://127.0.0.1:{port}/0", key(10, 2)) as a:
            assert a.sharing.is_away
            assert await a.begin_some(2)
            assert not await a.begin()

    with reserved_port() as port:
        run(test(port))


def test_a_store_that_does_not_answer_delays_few_requests(store: str) -> None:
    async def test() -> None:
        async with Gateway(store, key(max_concurrent=100), call_timeout_s=0.25) as a:
            await until(_is(lambda: not a.sharing.is_away))
            await until(a.begin)
            with client(store) as opened:
                server = int(opened.info()["process_id"])
            os.kill(server, signal.SIGSTOP)
            try:
                begin_s = time.monotonic()
                assert await a.begin_some(99)
                assert a.sharing.is_away
                assert time.monotonic() - begin_s < 99 * 0.25  # not each of them waited
            finally:
                os.kill(server, signal.SIGCONT)

    run(test())


def test_a_store_that_lost_all_learns_what_is_in_use(store: str) -> None:
    async def test() -> None:
        async with two(store, key(max_concurrent=2)) as (a, b):
            assert await a.begin_some(2)
            with client(store) as opened:
                opened.flushall()
            await until(_is(lambda: bool(limits_in(store))))
            assert not await b.begin()

    run(test())


def _is(is_so: Callable[[], bool]) -> Callable[[], Awaitable[bool]]:
    async def asked() -> bool:
        return is_so()

    return asked
