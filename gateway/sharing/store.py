"""The Redis or Valkey server that gateways share: the use of limits, the gateways alive, and API keys.

Scripts make atomic changes. The server's clock decides on ages. The caller decides how to continue without
the store.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from agentspec.corpus.settings import without_password
from agentspec.errors import AgentSpecError, ConfigError
from agentspec.extras import needed

with needed("corpus"):
    import redis
    import redis.asyncio
    from redis.backoff import NoBackoff

CONNECT_TIMEOUT_S = 0.5
CALL_TIMEOUT_S = 0.25  # a request waits for it at most once: then the store counts as away
TTL_S = 5.0
KEYS = "agentspec:{gateway}:keys"  # by digest, in hexadecimal: JSON
KEYS_VERSION = "agentspec:{gateway}:keys-version"
_ALIVE = "agentspec:{gateway}:alive"  # by gateway: when it expires, in ms
# the braces put all of it on one node of a cluster
_LIMIT = "agentspec:{gateway}:limit:"

# A limit's hash: left, at_ms (the bucket of requests); slot:<holder> = "<number> <when it expires, in ms>"
_TAKE = """
local key, own = KEYS[1], 'slot:' .. ARGV[1]
local slots, max_concurrent = tonumber(ARGV[2]), tonumber(ARGV[3])
local requests, per_minute, ttl_ms = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local num_slots, num_requests, wait_ms = 0, 0, 0
if max_concurrent then
  local free, fields = max_concurrent, redis.call('HGETALL', key)
  for i = 1, #fields, 2 do
    if string.sub(fields[i], 1, 5) == 'slot:' and fields[i] ~= own then
      local held, end_ms = string.match(fields[i + 1], '^(%d+) (%d+)$')
      if tonumber(end_ms) > now_ms then free = free - held else redis.call('HDEL', key, fields[i]) end
    end
  end
  num_slots = math.max(0, math.min(slots, free))
  if num_slots > 0 then
    redis.call('HSET', key, own, string.format('%d %d', num_slots, now_ms + ttl_ms))
  else
    redis.call('HDEL', key, own)
  end
end
if per_minute then
  local bucket = redis.call('HMGET', key, 'left', 'at_ms')
  local left, at_ms = tonumber(bucket[1] or per_minute), tonumber(bucket[2] or now_ms)
  left = math.min(per_minute, left + math.max(0, now_ms - at_ms) * per_minute / 60000)
  num_requests = math.min(requests, math.floor(left))
  left = math.min(per_minute, left - num_requests)
  redis.call('HSET', key, 'left', left, 'at_ms', now_ms)
  if left < 1 then wait_ms = math.ceil((1 - left) * 60000 / per_minute) end
end
redis.call('PEXPIRE', key, 60000 + ttl_ms)
return {num_slots, num_requests, wait_ms}
"""
_BEAT = """
local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZADD', KEYS[1], now_ms + ARGV[2], ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now_ms)
return {redis.call('ZCARD', KEYS[1]), redis.call('GET', KEYS[2]) or ''}
"""

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Wanted:
    """A gateway's request for a part of a key's limits.

    Attributes:
        limit: name of the limit, the same in all gateways.
        holder: who wants it, unique in its gateway.
        num_slots: requests at a time, those it has included.
        num_requests: to start; negative ones are given back.
        requests_per_minute, max_concurrent: None = no limit.
    """

    limit: str
    holder: str
    num_slots: int
    num_requests: int
    requests_per_minute: int | None
    max_concurrent: int | None


@dataclass(frozen=True, slots=True)
class Granted:
    """The store's answer.

    Attributes:
        num_slots: requests at a time, until the next heartbeat.
        num_requests: to start; negative if they were given back.
        wait_s: until there is another one to start.
    """

    num_slots: int
    num_requests: int
    wait_s: float


class SharingError(AgentSpecError):
    """The store of the gateways can't be used now."""


class SharedStore:
    """The store, for one event loop.

    Args:
        url: ``redis://USER:PASSWORD@HOST:PORT/DB``, ``rediss://`` for TLS, with redis-py's options.
        gateway: name of this gateway, unique among all.
        ttl_s: the store forgets a gateway so long after its last heartbeat.
        call_timeout_s: of each answer.

    Raises:
        ConfigError: the URL is malformed.
    """

    def __init__(
        self, url: str, gateway: str, ttl_s: float = TTL_S, call_timeout_s: float = CALL_TIMEOUT_S
    ) -> None:
        self._gateway = gateway
        self._ttl_ms = int(1e3 * ttl_s)
        self.shown = without_password(url)
        try:
            self._client: Any = redis.asyncio.Redis.from_url(
                url,
                socket_connect_timeout=CONNECT_TIMEOUT_S,
                socket_timeout=call_timeout_s,
                retry=redis.asyncio.retry.Retry(NoBackoff(), 0),  # the caller's breaker decides
                protocol=2,  # answers have one form in all versions of redis-py
                decode_responses=True,
            )
        except ValueError as error:
            raise ConfigError(f"{self.shown!r} is no URL of a Redis server: {error}") from None

    async def take(self, wanted: Wanted) -> Granted:
        """Take from a limit, or give back. Raises SharingError."""
        arguments = (
            f"{self._gateway}:{wanted.holder}",
            wanted.num_slots,
            _number(wanted.max_concurrent),
            wanted.num_requests,
            _number(wanted.requests_per_minute),
            self._ttl_ms,
        )
        slots, requests, wait_ms = await self._call(
            self._client.eval(_TAKE, 1, _LIMIT + wanted.limit, *arguments)
        )
        return Granted(slots, requests, wait_ms / 1e3)

    async def beat(self) -> tuple[int, str]:
        """Show that this gateway is alive. Return how many are, and the version of the keys."""
        num_alive, version = await self._call(
            self._client.eval(_BEAT, 2, _ALIVE, KEYS_VERSION, self._gateway, self._ttl_ms)
        )
        return num_alive, version

    async def keys(self) -> Mapping[str, str]:
        """Return the keys: JSON by digest. Raises SharingError."""
        return cast(Mapping[str, str], await self._call(self._client.hgetall(KEYS)))

    async def put_key(self, digest: str, text: str) -> None:
        """Add a key, or replace it. Raises SharingError."""
        async with self._client.pipeline(transaction=True) as pipeline:
            await self._call(pipeline.hset(KEYS, digest, text).set(KEYS_VERSION, _new_version()).execute())

    async def drop_key(self, digest: str) -> bool:
        """Remove a key. Return False if there is none. Raises SharingError."""
        async with self._client.pipeline(transaction=True) as pipeline:
            changes = pipeline.hdel(KEYS, digest).set(KEYS_VERSION, _new_version())
            dropped, _ = await self._call(changes.execute())
        return bool(dropped)

    async def leave(self) -> None:
        """Leave the gateways alive, and close."""
        try:
            await self._call(self._client.zrem(_ALIVE, self._gateway))
        finally:
            await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def _call(self, answer: Awaitable[Answer]) -> Answer:
        try:
            return await answer
        except (redis.RedisError, OSError, TimeoutError) as error:
            raise SharingError(f"the store {self.shown!r} can't be used now: {error}") from error


def _new_version() -> str:
    """Return a value that no earlier version has, even if the server lost its content meanwhile."""
    return uuid.uuid4().hex


def _number(value: int | None) -> str:
    return "" if value is None else str(value)
