"""API keys, stored only as digests, the principals that they identify, and the configuration in force."""

from __future__ import annotations

import hmac
import os
import re
import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from hashlib import blake2b, sha256

from starlette.datastructures import Headers

from agentspec.errors import ConfigError
from agentspec.gateway.call import Principal, RateLimits
from agentspec.gateway.errors import AuthError
from agentspec.gateway.settings import GatewaySettings, KeySettings
from agentspec.stages import DEFAULT_TENANT, check_tenant

API_KEYS_VARIABLE = "AGENTSPEC_API_KEYS"
_HASHED = re.compile(r"sha256:([0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class ApiKey:
    """One key that this gateway accepts, stored only as its digest.

    Attributes:
        digest: SHA-256 of the key.
        requests_per_minute, max_concurrent: None = no limit.
    """

    digest: bytes
    tenant: str = DEFAULT_TENANT
    requests_per_minute: int | None = None
    max_concurrent: int | None = None

    @classmethod
    def of(cls, settings: KeySettings) -> ApiKey:
        """Return the key of these settings."""
        digest = bytes.fromhex(settings.sha256)
        return cls(digest, settings.tenant, settings.requests_per_minute, settings.max_concurrent)


class ApiKeys:
    """The keys that this gateway accepts. Without any, every request belongs to the default tenant.

    The lookup uses a keyed digest of the key's digest, with a secret of this process. So the timing reveals
    nothing about known keys.

    Args:
        keys: this gateway's own keys, with each digest once.
        before: the keys in force until now, with what follows. A key with unchanged limits keeps its state.
        make_limits: returns the limits of a key; None = its own, in this process.
        are_needed: requests need a key even while no key exists.
        shared: keys of all gateways. An own key replaces the one with its digest.
    """

    def __init__(
        self,
        keys: Iterable[ApiKey] = (),
        before: ApiKeys | None = None,
        *,
        make_limits: Callable[[ApiKey], RateLimits] | None = None,
        are_needed: bool = False,
        shared: Iterable[ApiKey] | None = None,
    ) -> None:
        self._secret: bytes = secrets.token_bytes(32) if before is None else before._secret
        self._make_limits: Callable[[ApiKey], RateLimits] = make_limits or (
            _limits if before is None else before._make_limits
        )
        self._are_needed: bool = are_needed or (before is not None and before._are_needed)
        self._own = list(keys)
        self._shared: list[ApiKey] = [] if before is None else before._shared
        if shared is not None:
            self._shared = list(shared)
        known = {} if before is None else before._principals
        self._keys: dict[bytes, ApiKey] = {}
        self._principals: dict[ApiKey, Principal] = {}
        for key in (*self._shared, *self._own):
            self._keys[self._index(key.digest)] = key
            self._principals[key] = known.get(key) or Principal(key.tenant, self._make_limits(key))
        self._anonymous = Principal(DEFAULT_TENANT, RateLimits(None, None, time.monotonic))

    @classmethod
    def parse(cls, texts: Iterable[str]) -> ApiKeys:
        """Parse keys written ``KEY`` or ``KEY=TENANT``; ``sha256:HEX`` stands for the key with that digest.

        Raises:
            ConfigError: a key is empty or given to two tenants.
            StageError: a tenant's name is malformed.
        """
        return cls(parse_keys(texts))

    @classmethod
    def from_environment(cls) -> ApiKeys:
        """Parse the comma-separated keys in ``$AGENTSPEC_API_KEYS``. Raises as :meth:`parse`."""
        texts = os.environ.get(API_KEYS_VARIABLE, "").split(",")
        return cls.parse(text.strip() for text in texts if text.strip())

    def with_shared(self, shared: Iterable[ApiKey]) -> ApiKeys:
        """Return the own keys with these keys of all gateways."""
        return ApiKeys(self._own, self, shared=shared)

    def __len__(self) -> int:
        return len(self._keys)

    def __bool__(self) -> bool:
        """True if a request needs a key."""
        return self._are_needed or bool(self._keys)

    def tenants(self) -> list[str]:
        """Return the tenant of each key, in no particular order."""
        return [key.tenant for key in self._keys.values()]

    def principal(self, given: str | None) -> Principal:
        """Return the principal of the key that a request carries. Raises AuthError."""
        if not self:
            return self._anonymous
        if given is None:
            raise AuthError("an API key is needed: send 'Authorization: Bearer KEY'")
        digest = digest_of(given)
        key = self._keys.get(self._index(digest))
        if key is None or not hmac.compare_digest(key.digest, digest):
            raise AuthError("this API key is not known here")
        return self._principals[key]

    def _index(self, digest: bytes) -> bytes:
        return blake2b(digest, key=self._secret, digest_size=16).digest()


def parse_keys(texts: Iterable[str]) -> list[ApiKey]:
    """Parse keys in the form of :meth:`ApiKeys.parse`, with the same errors."""
    tenants: dict[bytes, str] = {}
    for position, text in enumerate(texts, 1):
        key, equals, tenant = text.rpartition("=")
        if not equals or not tenant:  # "abc==" is a key in base64, not a key of no tenant
            key, tenant = text, DEFAULT_TENANT
        if not key.strip("=") or not key.isascii() or not key.isprintable() or {" ", ","} & set(key):
            raise ConfigError(
                f"API key number {position} is empty, or has a comma or a character no header carries: "
                "write KEY or KEY=TENANT"
            )
        check_tenant(tenant)
        hashed = _HASHED.fullmatch(key)
        digest = bytes.fromhex(hashed[1]) if hashed else digest_of(key)
        if tenants.setdefault(digest, tenant) != tenant:
            raise ConfigError(f"one API key is given to two tenants: {tenants[digest]!r} and {tenant!r}")
    return [ApiKey(digest, tenant) for digest, tenant in tenants.items()]


def digest_of(key: str) -> bytes:
    """Return the digest that is stored for a key."""
    return sha256(key.encode("utf-8", "surrogateescape")).digest()


def given_key(headers: Headers) -> str | None:
    """Return the key that a request carries, in OpenAI's or Anthropic's header; None if it has none."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and key.strip():
        return key.strip()
    return headers.get("x-api-key") or None


def _limits(key: ApiKey) -> RateLimits:
    return RateLimits(key.requests_per_minute, key.max_concurrent, time.monotonic)


@dataclass(slots=True)
class RuntimeConfig:
    """The configuration in force. A reload replaces it field by field.

    Requests in flight keep the values that they started with.

    Attributes:
        admin_key: digest of the operator's key; None if there is none.
        cors_origins: origins of web pages that may read responses; "*" = all.
    """

    keys: ApiKeys = field(default_factory=ApiKeys)
    admin_key: bytes | None = None
    limits: GatewaySettings = field(default_factory=GatewaySettings)
    cors_origins: frozenset[str] = frozenset()
