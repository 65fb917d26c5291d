"""Discovered stages in a Redis or Valkey server, so that gateways of several machines share them.

It stores the same data as the file (``sqlite_store``). Per tenant a hash has one document per cluster. Number
of requests and time of the last request are separate fields, which every gateway increases.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from agentspec.corpus.settings import without_password
from agentspec.errors import ConfigError
from agentspec.extras import needed
from agentspec.gateway.discovery.cluster import Cluster, Member
from agentspec.gateway.discovery.clusters import Clusters
from agentspec.gateway.discovery.frames import Frame
from agentspec.gateway.discovery.stored import StoredTenant, changed_in, note_saved
from agentspec.gateway.discovery.templates import Template
from agentspec.stages import StageKey

with needed("corpus"):
    import redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry

CONNECT_TIMEOUT_S = 0.5
CALL_TIMEOUT_S = 2.0
BUSY_TIMEOUT_S = 2.0
_LOCK_MS = 5_000  # longer than a transaction; a lock of a crashed gateway expires after it
_POLL_S = 0.01
_PREFIX = "agentspec:{gateway}:discovery:"  # the braces place all keys on one node of a cluster
_KEY, _EPOCH, _LOCK, _VERSION, _TENANTS = (
    _PREFIX + name for name in ("key", "epoch", "lock", "version", "tenants")
)
_HASH = _PREFIX + "of:"  # of a tenant: c:<id> = document, n:<id> = requests, s:<id> = last seen, refused

# KEYS: lock, version, tenants. ARGV: token, prefix of hashes, JSON of the changes. Returns the new version.
_COMMIT = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return false end
redis.call('DEL', KEYS[1])
local changes = cjson.decode(ARGV[3])
for _, tenant in ipairs(changes) do
  local hash = ARGV[2] .. tenant.name
  redis.call('SADD', KEYS[3], tenant.name)
  for _, id in ipairs(tenant.gone) do redis.call('HDEL', hash, 'c:' .. id, 'n:' .. id, 's:' .. id) end
  for _, one in ipairs(tenant.clusters) do
    redis.call('HSET', hash, 'c:' .. one.id, one.document)
    redis.call('HINCRBY', hash, 'n:' .. one.id, one.more)
    local seen = tonumber(redis.call('HGET', hash, 's:' .. one.id) or 0)
    redis.call('HSET', hash, 's:' .. one.id, string.format('%.3f', math.max(seen, one.seen_s)))
  end
  if tenant.refused then redis.call('HSET', hash, 'refused', tenant.refused) end
end
if #changes == 0 then return tonumber(redis.call('GET', KEYS[2]) or 0) end
return redis.call('INCR', KEYS[2])
"""
_UNLOCK = "if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end"

logger = logging.getLogger("agentspec.gateway")


class RedisDiscoveryStore:
    """A :class:`~agentspec.gateway.discovery.stored.DiscoveryStore` in a Redis or Valkey server.

    If the server can't be reached when the gateway starts, the gateway does not use it until its next start,
    since the digests' key is not known.

    Args:
        url: ``redis://USER:PASSWORD@HOST:PORT/DB``, ``rediss://`` for TLS, with redis-py's options.
        keeps_text: keep templates.

    Raises:
        ConfigError: the URL is malformed.
    """

    def __init__(self, url: str, *, keeps_text: bool = True) -> None:
        self.key: bytes | None = None
        self.has_lost = False
        self._epoch: bytes | None = None  # changes when the server loses its content
        self._shown = without_password(url)
        self._keeps_text = keeps_text
        self._token: str | None = None  # token of the lock that this gateway holds
        self._seen_version = -1
        self._refused: dict[str, str] = {}  # by tenant, as the server stores them
        self._has_failed = False
        try:
            self._client: Any = redis.Redis.from_url(
                url,
                socket_connect_timeout=CONNECT_TIMEOUT_S,
                socket_timeout=CALL_TIMEOUT_S,
                retry=Retry(NoBackoff(), 0),
                protocol=2,
            )
        except ValueError as error:
            raise ConfigError(f"{self._shown!r} is no URL of a Redis server: {error}") from None
        with self._failures():
            self._epoch = self._ensured_key(os.urandom(32))
            key: Any = self._client.get(_KEY)
            self.key = key

    def begin(self) -> None:
        """Begin a transaction. Until it ends, other writers wait."""
        if self.key is None or self._token is not None:
            return
        self.has_lost = False
        token, end_s = secrets.token_hex(16), time.monotonic() + BUSY_TIMEOUT_S
        with self._failures():
            while not self._client.set(_LOCK, token, nx=True, px=_LOCK_MS):
                if time.monotonic() > end_s:
                    raise redis.TimeoutError("another gateway holds the lock")
                time.sleep(_POLL_S)
            epoch = self._ensured_key(self.key)
            if self._client.get(_KEY) != self.key:
                raise redis.DataError("it lost its content and has another key now: restart this gateway")
            self.has_lost, self._epoch = epoch != self._epoch, epoch
            if self.has_lost:
                self._refused, self._seen_version = {}, -1
            self._token = token

    def _ensured_key(self, key: bytes) -> bytes | None:
        """Write the key if the server has none. Return the epoch, which began when the key was written."""
        if self._client.setnx(_KEY, key):
            self._client.set(_EPOCH, secrets.token_hex(8))
        epoch: bytes | None = self._client.get(_EPOCH)
        return epoch

    def news(self) -> dict[str, StoredTenant] | None:
        """Read everything, by tenant; None if no other process wrote since the last call."""
        if self._token is None:
            return None
        kept: dict[str, StoredTenant] | None = None
        with self._failures():
            version = int(self._client.get(_VERSION) or 0)
            if version != self._seen_version:
                kept = self._read()
                self._seen_version = version
        return kept

    def commit(self, tenants: Sequence[Clusters], *, with_counts: bool = True) -> None:
        """Write changes and end the transaction. If that fails, the changes stay marked as unsaved."""
        if self._token is None:
            return
        changed = [changed_in(clusters, with_counts) for clusters in tenants]
        changes = [self._changes(clusters, those) for clusters, those in zip(tenants, changed, strict=True)]
        written = [one for one in changes if one["gone"] or one["clusters"] or "refused" in one]
        with self._failures():
            version = self._client.eval(
                _COMMIT, 3, _LOCK, _VERSION, _TENANTS, self._token, _HASH, json.dumps(written)
            )
            self._token = None
            if version is None:
                raise redis.TimeoutError("the lock was held for too long, and is lost")
            if written and version == self._seen_version + 1:
                self._seen_version = version  # else another gateway has written without the lock
            for clusters, those, one in zip(tenants, changed, changes, strict=True):
                note_saved(clusters, those)
                self._refused[clusters.tenant] = one.get("refused", self._refused.get(clusters.tenant, "[]"))
            if self._has_failed:
                self._has_failed = False
                logger.warning("discovered stages are saved to %s again", self._shown)

    def rollback(self) -> None:
        """End the transaction without changes."""
        token, self._token = self._token, None
        if token is not None:
            with self._failures():
                self._client.eval(_UNLOCK, 1, _LOCK, token)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    @contextmanager
    def _failures(self) -> Iterator[None]:
        """End the transaction on an error of the server, and log the first one."""
        try:
            yield
        except (redis.RedisError, ValueError, KeyError) as error:
            self._token = None  # the lock expires without a release
            if not self._has_failed:
                self._has_failed = True
                logger.warning("discovered stages can't be saved to %s for now: %s", self._shown, error)

    # ---- documents ----

    def _read(self) -> dict[str, StoredTenant]:
        names = [name.decode() for name in self._client.smembers(_TENANTS)]
        with self._client.pipeline(transaction=False) as pipeline:
            for name in names:
                pipeline.hgetall(_HASH + name)
            found = pipeline.execute()
        tenants = {}
        for name, fields in zip(names, found, strict=True):
            texts = {field.decode(): value.decode() for field, value in fields.items()}
            self._refused[name] = texts.get("refused", "[]")
            clusters = [_cluster(name, field[2:], texts) for field in texts if field.startswith("c:")]
            tenants[name] = StoredTenant(
                {cluster.id: cluster for cluster in clusters}, _templates(json.loads(self._refused[name]))
            )
        return tenants

    def _changes(self, clusters: Clusters, changed: Mapping[Cluster, int]) -> dict[str, Any]:
        refused = json.dumps(_packed(clusters.refused) if self._keeps_text else [])
        changes: dict[str, Any] = {
            "name": clusters.tenant,
            "gone": sorted(clusters.gone),
            "clusters": [
                {
                    "id": cluster.id,
                    "document": self._document(cluster),
                    "more": num_requests - (cluster.num_saved if cluster.is_saved else 0),
                    "seen_s": cluster.last_seen_s,
                }
                for cluster, num_requests in changed.items()
            ],
        }
        if refused != self._refused.get(clusters.tenant, "[]"):
            changes["refused"] = refused
        return changes

    def _document(self, cluster: Cluster) -> str:
        members = cluster.members.values()
        keeps_text = self._keeps_text and cluster.is_text_kept
        return json.dumps(
            {
                "own_stage": cluster.own_stage.name,
                "stage": cluster.stage.name,
                "flags": [cluster.is_named, cluster.is_pinned, cluster.is_user_edited],
                "text": cluster.text if keeps_text else "",
                "members": [
                    [one.digest.hex(), one.is_system, one.num_requests, one.num_openings] for one in members
                ],
                "templates": _packed(cluster.templates) if keeps_text else [],
            }
        )


def _cluster(tenant: str, cluster_id: str, texts: Mapping[str, str]) -> Cluster:
    document = json.loads(texts[f"c:{cluster_id}"])
    num_requests = int(texts.get(f"n:{cluster_id}", 0))
    is_named, is_pinned, is_user_edited = map(bool, document["flags"])
    cluster = Cluster(
        cluster_id,
        StageKey.parse(document["own_stage"], tenant),
        StageKey.parse(document["stage"], tenant),
        is_named=is_named,
        is_pinned=is_pinned,
        is_user_edited=is_user_edited,
        text=document["text"],
        num_requests=num_requests,
        last_seen_s=float(texts.get(f"s:{cluster_id}", 0)),
        frames=[Frame.restored(*one) for one in _templates(document["templates"])],
        num_saved=num_requests,
        is_saved=True,
    )
    for digest, is_system, *counts in document["members"]:
        member = Member(bytes.fromhex(digest), bool(is_system), cluster, *counts)
        cluster.members[member.digest] = member
    return cluster


def _packed(templates: Sequence[tuple[bytes, Template]]) -> list[list[Any]]:
    return [[shape.hex(), list(one.runs), one.num_words, one.least_share] for shape, one in templates]


def _templates(packed: Sequence[Sequence[Any]]) -> list[tuple[bytes, Template]]:
    return [
        (bytes.fromhex(shape), Template(tuple(runs), num_words, least_share))
        for shape, runs, num_words, least_share in packed
    ]
