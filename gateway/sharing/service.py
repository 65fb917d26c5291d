"""Sharing with other gateways: the parts of limits that this one holds, and a heartbeat.

The heartbeat renews what limits use, and reads API keys.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from hashlib import blake2b

from prometheus_client.core import GaugeMetricFamily, Metric
from pydantic import ValidationError

from agentspec.corpus.threads import CircuitBreaker
from agentspec.errors import StageError
from agentspec.gateway.auth.api_keys import ApiKey, RuntimeConfig
from agentspec.gateway.call import RateLimits
from agentspec.gateway.settings import KeySettings, SharingSettings
from agentspec.gateway.sharing.store import CALL_TIMEOUT_S, TTL_S, Granted, SharedStore, SharingError, Wanted
from agentspec.stages import check_tenant

BEAT_S = 1.0
SETTLED_S = 1.0  # within it other gateways give back what they do not use
CHUNK_S = 0.25  # a gateway takes this part of a minute's requests at a time

logger = logging.getLogger("agentspec.gateway")


class SharedLimits(RateLimits):
    """A gateway's part of a limit. It asks the store only if its part is used up.

    The parts of all gateways together never exceed the limit. While the store is away, each gateway
    admits an equal share of the limit.

    Args:
        name: the same in all gateways.
        requests_per_minute, max_concurrent: None = no limit.
        pool: gives parts.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        name: str,
        requests_per_minute: int | None,
        max_concurrent: int | None,
        pool: Sharing,
        clock: Callable[[], float],
    ) -> None:
        super().__init__(requests_per_minute, max_concurrent, clock)
        self._name = name
        self._holder = uuid.uuid4().hex[:12]  # a reload may replace this object while its requests run
        self._pool = pool
        self._taking = asyncio.Lock()
        self._num_left = 0.0  # requests to start, taken from the store
        self._filled_s -= 60.0  # without a store it begins with its whole share
        self._num_slots = 0  # requests at a time, held in the store
        self._most_running = 0  # since the last settle()
        self._has_started = False  # since then
        self._retry_s = 0.0
        self._dry_until_s = 0.0  # until then the store has no request to start

    @property
    def is_short(self) -> bool:
        """True if this gateway's part has no room for one more request, and the store may have."""
        if self._pool.is_away or (self._lacks_request and self._clock() < self._dry_until_s):
            return False
        return self._lacks_slot or self._lacks_request

    async def take_more(self) -> None:
        """Take room for one more request from the store, and some requests in advance."""
        async with self._taking:
            if self.is_short:
                chunk = 1 + int((self._per_minute or 0) * CHUNK_S / 60)
                await self._take(self._num_running + 1, chunk if self._lacks_request else 0)

    async def settle(self) -> None:
        """Renew the part in use, and give the rest back."""
        async with self._taking:
            most_running, has_started = max(self._most_running, self._num_running), self._has_started
            self._most_running, self._has_started = self._num_running, False
            if most_running or self._num_slots or self._num_left >= 1:
                await self._take(most_running, 0 if has_started else -int(self._num_left))

    def begin_anew(self) -> None:
        """Drop the requests that were counted while the store was away."""
        self._num_left = 0.0
        self._dry_until_s = 0.0

    async def give_back(self) -> None:
        """Give everything back."""
        async with self._taking:
            if self._num_slots or self._num_left >= 1:
                await self._take(0, -int(self._num_left))

    @property
    def _lacks_slot(self) -> bool:
        return self._max_concurrent is not None and self._num_running >= self._num_slots

    @property
    def _lacks_request(self) -> bool:
        return self._per_minute is not None and self._num_left < 1

    async def _take(self, num_slots: int, num_requests: int) -> None:
        before = self._num_slots
        self._num_slots = min(before, num_slots)  # meanwhile nothing is used that is given back
        self._num_left += min(num_requests, 0)
        granted = await self._pool.take(
            Wanted(self._name, self._holder, num_slots, num_requests, self._per_minute, self._max_concurrent)
        )
        if granted is None:
            self._num_slots = before
            return
        self._num_slots = granted.num_slots
        self._num_left += max(granted.num_requests, 0)
        self._filled_s = self._clock()
        self._retry_s = granted.wait_s
        if num_requests > 0 and granted.num_requests < 1:
            self._dry_until_s = self._clock() + min(granted.wait_s, SETTLED_S)

    def _admit(self) -> None:
        if self._pool.is_away:
            self._admit_share(self._pool.num_gateways)
        else:
            if self._max_concurrent is not None:
                self._check_room(self._num_slots)
            if self._per_minute is not None:
                self._take_one(self._retry_s)
        self._has_started = True
        self._most_running = max(self._most_running, self._num_running + 1)


class Sharing:
    """What this gateway shares. Used in the event loop only, except for :meth:`limits_of`.

    Args:
        settings: names the store.
        clock: seconds, monotonic.
        beat_s: seconds between two heartbeats.
        ttl_s: what a gateway holds is free again, so long after its last heartbeat.
        call_timeout_s: time after which the store counts as away.

    Attributes:
        num_gateways: gateways alive, as of the last answer of the store.

    Raises:
        ConfigError: the store's URL is malformed, or a package is missing.
    """

    def __init__(
        self,
        settings: SharingSettings,
        clock: Callable[[], float] = time.monotonic,
        *,
        beat_s: float = BEAT_S,
        ttl_s: float = TTL_S,
        call_timeout_s: float = CALL_TIMEOUT_S,
    ) -> None:
        assert settings.store is not None
        self._store = SharedStore(settings.store, uuid.uuid4().hex, ttl_s, call_timeout_s)
        self._accepts_keys = settings.keys
        self._beat_s = beat_s
        self._clock = clock
        self._breaker = CircuitBreaker("sharing with other gateways", clock)
        self._limits: weakref.WeakSet[SharedLimits] = weakref.WeakSet()
        self._keys_version: str | None = None
        self._closing = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.num_gateways = 1

    @property
    def is_away(self) -> bool:
        """True while the store can't be used. A heartbeat finds out when it can be used again."""
        return self._breaker.is_open

    def limits_of(self, key: ApiKey) -> RateLimits:
        """Return the limits of a key. A key without limits shares nothing."""
        if key.requests_per_minute is None and key.max_concurrent is None:
            return RateLimits(None, None, self._clock)
        name = blake2b(key.digest, digest_size=16).hexdigest()
        limits = SharedLimits(name, key.requests_per_minute, key.max_concurrent, self, self._clock)
        self._limits.add(limits)
        return limits

    def metrics(self) -> Iterator[Metric]:
        """Yield the metric families of the gateways alive, and of the store that they share."""
        alive = "Gateways alive that share limits, as of the last answer of the store"
        yield GaugeMetricFamily("agentspec_gateways", alive, self.num_gateways)
        up = "1 if the store that gateways share can be used"
        yield GaugeMetricFamily("agentspec_gateway_store_up", up, int(not self.is_away))

    async def take(self, wanted: Wanted) -> Granted | None:
        """Take from a limit, or give back; None if the store is away."""
        if self.is_away:
            return None
        try:
            return await self._store.take(wanted)
        except SharingError as error:
            self._breaker.fail(error)
            return None

    @asynccontextmanager
    async def running(self, runtime: RuntimeConfig) -> AsyncIterator[None]:
        """Share within the context."""
        await self.start(runtime)
        try:
            yield
        finally:
            await self.close()

    async def start(self, runtime: RuntimeConfig) -> None:
        """Begin to share. Returns once the store has answered, or counts as away."""
        await self._beat(runtime)
        self._task = asyncio.create_task(self._run(runtime))

    async def close(self) -> None:
        """Give everything back, and leave."""
        self._closing.set()  # not cancelled: redis-py may lose a cancellation
        if self._task is not None:
            await self._task
        with suppress(SharingError):
            if not self.is_away:
                for limits in list(self._limits):
                    await limits.give_back()
            await self._store.leave()

    async def _run(self, runtime: RuntimeConfig) -> None:
        while not await self._closes_within(max(self._beat_s, self._breaker.wait_s)):
            try:
                await self._beat(runtime)
            except Exception:  # the next one may work
                logger.exception("sharing with other gateways: a heartbeat failed")

    async def _closes_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._closing.wait()
        except TimeoutError:
            return False
        return True

    async def _beat(self, runtime: RuntimeConfig) -> None:
        try:
            self.num_gateways, version = await self._store.beat()
            if self._accepts_keys and version != self._keys_version:
                found = await self._store.keys()
                runtime.keys = runtime.keys.with_shared(_parsed(found))
                self._keys_version = version
        except SharingError as error:
            self._breaker.fail(error)
            self._keys_version = None  # read them again afterwards
            return
        was_away = self.is_away
        self._breaker.succeed()
        for limits in list(self._limits):
            if was_away:
                limits.begin_anew()
            await limits.settle()


def _parsed(found: Mapping[str, str]) -> list[ApiKey]:
    """Return the keys. One that is malformed is logged, and not accepted."""
    keys = []
    for digest, text in found.items():
        try:
            key = KeySettings.model_validate_json(text)
            check_tenant(key.tenant)
        except (ValidationError, StageError):
            logger.error("the store's API key with the digest %s... is malformed, and refused", digest[:8])
            continue
        keys.append(ApiKey.of(key))
    return keys
