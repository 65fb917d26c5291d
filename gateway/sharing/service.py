"""Sharing with other gateways: a heartbeat that renews what limits use, and reads API keys."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
import weakref
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from hashlib import blake2b

from pydantic import ValidationError

from agentspec.corpus.circuit_breaker import CircuitBreaker
from agentspec.errors import StageError
from agentspec.gateway.auth.api_keys import ApiKey, RuntimeConfig
from agentspec.gateway.call import RateLimits
from agentspec.gateway.settings import KeySettings, SharingSettings
from agentspec.gateway.sharing.limits import Granted, SharedLimits, Wanted
from agentspec.gateway.sharing.store import CALL_TIMEOUT_S, TTL_S, SharedStore, SharingError
from agentspec.stages import check_tenant

BEAT_S = 1.0

logger = logging.getLogger("agentspec.gateway")


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
