"""The corpus of a fleet: streams of a Redis or Valkey server.

Per scope there is a stream (the log), a hash of facts, a lease, and a hash per snapshot, its parts by number.
What must happen at once is a script. The server's clock decides on ages.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
import uuid
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import Any
from urllib.parse import quote

from agentspec.corpus.batch import check_size
from agentspec.corpus.store import (
    START,
    Cursor,
    Entry,
    Retention,
    Scope,
    ScopeStats,
    Snapshot,
    without_password,
)
from agentspec.errors import ConfigError, CorpusError
from agentspec.extras import needed

with needed("corpus"):
    import redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry

CONNECT_TIMEOUT_S = 1.0
CALL_TIMEOUT_S = 2.0
_PREFIX = "agentspec:corpus:"
_SCOPES = f"{_PREFIX}scopes"  # a set: all that have ever had outputs, without the erased ones
_READ_COUNT = 16  # entries per call
_UPLOAD_S = 600.0  # an unfinished snapshot is gone so long after its last part

# facts: epoch, fence, bytes (of the log), most_bytes and most_ms (its retention), key (wrapped), snapshot and
# previous (ids)
_PUBLISH = """
local log, facts = KEYS[1], KEYS[2]
local batch, epoch, most_bytes, most_ms = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
if epoch ~= '' and epoch ~= (redis.call('HGET', facts, 'epoch') or '0') then return 0 end
if redis.call('XLEN', log) == 0 then redis.call('HSET', facts, 'bytes', 0) end
redis.call('HSET', facts, 'most_bytes', ARGV[3], 'most_ms', ARGV[4])
local id = redis.call('XADD', log, '*', 'batch', batch)
local bytes = redis.call('HINCRBY', facts, 'bytes', #batch)
local oldest_ms = redis.call('TIME')[1] * 1000 - most_ms
for _ = 1, 128 do  -- more is left to the next call: a script stops all clients
  local first = redis.call('XRANGE', log, '-', '+', 'COUNT', 1)[1]
  local is_young = tonumber(string.match(first[1], '^%d+')) >= oldest_ms
  if first[1] == id or (bytes <= most_bytes and is_young) then break end
  redis.call('XDEL', log, first[1])
  bytes = redis.call('HINCRBY', facts, 'bytes', -#first[2][2])
end
redis.call('PEXPIRE', log, most_ms)
return 1
"""
_REWRITE = """
local log, facts, entry, batch = KEYS[1], KEYS[2], ARGV[1], ARGV[2]
local found = redis.call('XRANGE', log, entry, entry)[1]
if not found then return end
if batch ~= '' then
  redis.call('XADD', log, '*', 'batch', batch)
end
redis.call('XDEL', log, entry)
redis.call('HINCRBY', facts, 'bytes', #batch - #found[2][2])
"""
_DROP_PREVIOUS = """
local previous = redis.call('HGET', KEYS[1], 'previous')
if previous then redis.call('UNLINK', ARGV[1] .. previous) end
redis.call('HDEL', KEYS[1], 'previous')
"""
_LEASE = """
local holder = redis.call('GET', KEYS[2])
if holder and holder ~= ARGV[1] then return end
redis.call('SET', KEYS[2], ARGV[1], 'PX', ARGV[2])
return redis.call('HINCRBY', KEYS[1], 'fence', 1)
"""
_SWAP = """
local facts, prefix, id, fence, most_ms = KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local cursor, parts, bytes = ARGV[5], ARGV[6], ARGV[7]
if fence ~= redis.call('HGET', facts, 'fence') then return 0 end
if redis.call('HLEN', prefix .. id) ~= tonumber(parts) then return 0 end  -- it took too long
redis.call('HSET', prefix .. id, 'cursor', cursor, 'parts', parts, 'bytes', bytes,
  'minute', math.floor(redis.call('TIME')[1] / 60))
redis.call('PEXPIRE', prefix .. id, most_ms)
local previous = redis.call('HGET', facts, 'previous')
if previous then redis.call('UNLINK', prefix .. previous) end
local current = redis.call('HGET', facts, 'snapshot')
if current then redis.call('HSET', facts, 'previous', current) end
redis.call('HSET', facts, 'snapshot', id)
return 1
"""
_ERASE = """
local log, facts, lease, prefix = KEYS[1], KEYS[2], KEYS[3], ARGV[1]
for _, name in ipairs({'snapshot', 'previous'}) do
  local id = redis.call('HGET', facts, name)
  if id then redis.call('UNLINK', prefix .. id) end
end
redis.call('HDEL', facts, 'snapshot', 'previous', 'bytes', 'key')
redis.call('XTRIM', log, 'MAXLEN', 0)  -- the stream itself stays: its ids go on rising
redis.call('DEL', lease)
redis.call('HINCRBY', facts, 'fence', 1)
local before, now = tonumber(redis.call('HGET', facts, 'epoch') or 0), tonumber(redis.call('TIME')[1])
redis.call('HSET', facts, 'epoch', string.format('%d', math.max(before + 1, now)))
"""
_STATS = """
local log, facts, prefix = KEYS[1], KEYS[2], ARGV[1]
local first = redis.call('XRANGE', log, '-', '+', 'COUNT', 1)[1]
local entries, bytes, oldest, snapshots, written = 0, 0, 0, 0, 0
if first then
  entries, bytes = redis.call('XLEN', log), tonumber(redis.call('HGET', facts, 'bytes'))
  oldest = math.floor(tonumber(string.match(first[1], '^%d+')) / 60000)
end
for _, name in ipairs({'previous', 'snapshot'}) do
  local id = redis.call('HGET', facts, name)
  if id then
    snapshots = snapshots + (redis.call('HGET', prefix .. id, 'bytes') or 0)
    written = tonumber(redis.call('HGET', prefix .. id, 'minute') or 0)
  end
end
local most = redis.call('HMGET', facts, 'most_bytes', 'most_ms')
return {entries, bytes, snapshots, oldest, written, tonumber(most[1] or 0), tonumber(most[2] or 0)}
"""


class RedisStore:
    """A :class:`~agentspec.corpus.store.CorpusStore` in a Redis (6.2 or newer) or Valkey server.

    Nothing is called before it is needed: a server that is away at first is used once it is there. Works on
    in forked processes.

    Args:
        url: ``redis://USER:PASSWORD@HOST:PORT/DB``, ``rediss://`` for TLS, with redis-py's options.
        retention: how much to keep of each scope.
        connect_timeout_s: of a connection.
        call_timeout_s: of each answer.

    Raises:
        ConfigError: the URL is malformed.
    """

    window_s = 0.25  # all engines of a fleet read each entry

    def __init__(
        self,
        url: str,
        retention: Retention | None = None,
        *,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        call_timeout_s: float = CALL_TIMEOUT_S,
    ) -> None:
        self._shown = without_password(url)
        self._retention = retention or Retention()
        self._most_wait_s = call_timeout_s / 2  # a longer block would end as a time-out
        self._closed = threading.Event()
        try:
            self._client: Any = redis.Redis.from_url(
                url,
                socket_connect_timeout=connect_timeout_s,
                socket_timeout=call_timeout_s,
                retry=Retry(NoBackoff(), 0),  # the caller's breaker decides
                protocol=2,  # answers have one form in all versions of redis-py
            )
        except ValueError as error:
            raise ConfigError(f"{self._shown!r} is no URL of a Redis server: {error}") from None

    # ---- the log ----

    def publish(self, scope: Scope, batch: bytes, epoch: int | None = None) -> bool:
        """Append a batch to the log, and drop what is beyond the retention."""
        check_size(batch)
        keys = _Keys(scope)
        expected = "" if epoch is None else epoch
        with self._errors(), self._client.pipeline(transaction=False) as pipeline:
            pipeline.sadd(_SCOPES, json.dumps(scope))
            limits = (self._retention.most_bytes, self._most_age_ms)
            pipeline.eval(_PUBLISH, 2, keys.log, keys.facts, batch, expected, *limits)
            return bool(_answers(pipeline)[1])

    def tenants(self, vocabulary: str) -> list[str]:
        """Return the tenants that have outputs of this vocabulary, or had some."""
        return [scope.tenant for scope in self.scopes() if scope.vocabulary == vocabulary]

    def read(self, scope: Scope, after: Cursor, most_bytes: int) -> list[Entry]:
        """Return entries after a cursor, the oldest first."""
        log = _Keys(scope).log
        entries: list[Entry] = []
        num_bytes = 0
        while True:
            begin = f"({after}" if after else "-"
            with self._errors():
                found = self._client.xrange(log, begin, "+", count=_READ_COUNT)
            for cursor, fields in found:
                num_bytes += len(fields[b"batch"])
                if entries and num_bytes > most_bytes:
                    return entries
                entries.append(Entry(cursor.decode(), fields[b"batch"]))
            if len(found) < _READ_COUNT:
                return entries
            after = entries[-1].cursor

    def wait(self, cursors: dict[Scope, Cursor], timeout_s: float) -> None:
        """Return once one of the scopes has an entry after its cursor, or after the time-out."""
        deadline = time.monotonic() + timeout_s
        streams = {_Keys(scope).log: after or "0-0" for scope, after in cursors.items()}
        if not streams:
            self._closed.wait(timeout_s)
        while streams and not self._closed.is_set() and (left_s := deadline - time.monotonic()) > 0:
            block_ms = max(1, int(min(left_s, self._most_wait_s) * 1000))
            try:
                with self._errors():
                    if self._client.xread(streams, count=1, block=block_ms):
                        return
            except CorpusError:
                if not self._closed.is_set():
                    raise

    def end(self, scope: Scope) -> Cursor:
        """Return the cursor behind the newest entry."""
        with self._errors():
            newest = self._client.xrevrange(_Keys(scope).log, count=1)
        return newest[0][0].decode() if newest else START

    def rewrite(self, scope: Scope, entries: Iterable[tuple[Cursor, bytes | None]]) -> None:
        """Replace entries, one at a time, by what remains of them.

        The server may keep bytes of removed entries in a block of the stream until all of that block is gone.
        """
        keys = _Keys(scope)
        for cursor, batch in entries:
            check_size(batch or b"")
            with self._errors():
                self._client.eval(_REWRITE, 2, keys.log, keys.facts, cursor, batch or b"")
        with self._errors():
            self._client.eval(_DROP_PREVIOUS, 1, keys.facts, keys.snapshot)

    # ---- epochs and snapshots ----

    def epoch(self, scope: Scope) -> int:
        """Return how often the scope was erased."""
        with self._errors():
            return int(self._client.hget(_Keys(scope).facts, "epoch") or 0)

    def erase(self, scope: Scope) -> None:
        """Remove all of the scope and its wrapped key, and begin a new epoch."""
        keys = _Keys(scope)
        with self._errors(), self._client.pipeline(transaction=False) as pipeline:
            pipeline.eval(_ERASE, 3, keys.log, keys.facts, keys.lease, keys.snapshot)
            pipeline.srem(_SCOPES, json.dumps(scope))
            _answers(pipeline)

    def lease(self, scope: Scope, holder: str, ttl_s: float) -> int | None:
        """Return a fencing number if the holder may write the snapshot now."""
        keys = _Keys(scope)
        with self._errors():
            fence = self._client.eval(_LEASE, 2, keys.facts, keys.lease, holder, max(1, int(ttl_s * 1000)))
        return None if fence is None else int(fence)

    def put_snapshot(self, scope: Scope, fence: int, cursor: Cursor, parts: Iterable[bytes]) -> bool:
        """Upload the parts one by one, then replace the scope's snapshot at once."""
        keys = _Keys(scope)
        snapshot = uuid.uuid4().hex
        key = keys.snapshot + snapshot
        is_put = False
        try:
            sizes = self._upload(key, parts)
            with self._errors(), self._client.pipeline(transaction=False) as pipeline:
                pipeline.sadd(_SCOPES, json.dumps(scope))
                arguments = (keys.snapshot, snapshot, fence, self._most_age_ms, cursor, *sizes)
                pipeline.eval(_SWAP, 1, keys.facts, *arguments)
                is_put = bool(_answers(pipeline)[1])
        finally:
            if not is_put:
                with contextlib.suppress(CorpusError), self._errors():
                    self._client.unlink(key)
        return is_put

    def snapshot(self, scope: Scope) -> Snapshot | None:
        """Return the scope's snapshot, if there is one."""
        keys = _Keys(scope)
        with self._errors():
            snapshot = self._client.hget(keys.facts, "snapshot")
            if snapshot is None:
                return None
            key = keys.snapshot + snapshot.decode()
            cursor, num_parts = self._client.hmget(key, "cursor", "parts")
        if cursor is None:  # too old
            return None
        return Snapshot(cursor.decode(), self._parts(key, int(num_parts)))

    def _upload(self, key: str, parts: Iterable[bytes]) -> tuple[int, int]:
        """Write the parts under a key that is gone some minutes after the last. Return number and bytes."""
        num_parts = num_bytes = 0
        for part in parts:
            check_size(part)
            with self._errors(), self._client.pipeline(transaction=False) as pipeline:
                pipeline.hset(key, str(num_parts), part)
                pipeline.pexpire(key, int(_UPLOAD_S * 1000))
                _answers(pipeline)
            num_parts += 1
            num_bytes += len(part)
        return num_parts, num_bytes

    def _parts(self, key: str, num_parts: int) -> Iterator[bytes]:
        for number in range(num_parts):
            with self._errors():
                part: bytes | None = self._client.hget(key, str(number))
            if part is None:
                raise CorpusError("this snapshot was replaced while it was read: read the new one")
            yield part

    # ---- keys, sizes ----

    def wrapped_key(self, scope: Scope, candidate: bytes | None = None) -> bytes | None:
        """Return the scope's wrapped data key. If it has none, it becomes the candidate, if there is one."""
        facts = _Keys(scope).facts
        with self._errors(), self._client.pipeline() as pipeline:
            if candidate is not None:
                pipeline.hsetnx(facts, "key", candidate)
            pipeline.hget(facts, "key")
            wrapped: bytes | None = _answers(pipeline)[-1]
            return wrapped

    def stats(self) -> dict[Scope, ScopeStats]:
        """Return the sizes of all scopes that have outputs."""
        scopes = self.scopes()
        with self._errors(), self._client.pipeline(transaction=False) as pipeline:
            for keys in map(_Keys, scopes):
                pipeline.eval(_STATS, 2, keys.log, keys.facts, keys.snapshot)
            found = dict(zip(scopes, _answers(pipeline), strict=True))
        stats = {scope: _stats(*answer) for scope, answer in found.items()}
        return {scope: one for scope, one in stats.items() if one.num_entries or one.num_snapshot_bytes}

    def scopes(self) -> list[Scope]:
        """Return the scopes that have ever had outputs, without the erased ones."""
        with self._errors():
            return sorted(Scope(*json.loads(name)) for name in self._client.smembers(_SCOPES))

    def check_integrity(self) -> list[str]:
        """Return nothing: the server guards its memory and files."""
        return []

    def close(self) -> None:
        """Close the connections, and end all waits."""
        self._closed.set()
        self._client.connection_pool.disconnect(inuse_connections=False)  # others end with their calls

    @property
    def _most_age_ms(self) -> int:
        return max(1, int(self._retention.most_age_s * 1000))

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        if self._closed.is_set():
            raise CorpusError(f"the corpus at {self._shown} is closed")
        try:
            yield
        except redis.RedisError as error:
            raise CorpusError(f"the corpus at {self._shown} can't be used now: {error}") from error


class _Keys:
    """The names of a scope's keys. The braces keep them together in a cluster."""

    def __init__(self, scope: Scope) -> None:
        vocabulary = blake2b(scope.vocabulary.encode(), digest_size=8).hexdigest()
        scope_name = f"{_PREFIX}{{{vocabulary}:{quote(scope.tenant, safe='')}}}"
        self.log = f"{scope_name}:log"
        self.facts = f"{scope_name}:facts"
        self.lease = f"{scope_name}:lease"
        self.snapshot = f"{scope_name}:snapshot:"  # before an id


def _stats(
    num_entries: int,
    num_bytes: int,
    num_snapshot_bytes: int,
    oldest: int,
    written: int,
    most_bytes: int,
    most_ms: int,
) -> ScopeStats:
    retention = Retention(most_bytes, most_ms / 1000) if most_bytes else None
    return ScopeStats(num_entries, num_bytes, num_snapshot_bytes, oldest, written, retention)


def _answers(pipeline: Any) -> list[Any]:
    """Run the pipeline. Its own errors would show the commands, and with them content."""
    answers: list[Any] = pipeline.execute(raise_on_error=False)
    for answer in answers:
        if isinstance(answer, redis.RedisError):
            raise answer
    return answers
