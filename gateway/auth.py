"""Who is asking: API keys, the tenant that each stands for, and the operator's own."""

from __future__ import annotations

import hmac
import ipaddress
import os
import secrets
import time
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b, sha256

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from agentspec.errors import ConfigError
from agentspec.gateway.errors import AuthError, ForbiddenError
from agentspec.gateway.key_limits import KeyLimits
from agentspec.gateway.reply import Reply
from agentspec.stages import DEFAULT_STAGE, DEFAULT_TENANT, StageKey

TENANT_KEY = "agentspec.tenant"
CALLER_KEY = "agentspec.caller"
API_KEYS_VARIABLE = "AGENTSPEC_API_KEYS"
OPERATOR_PATHS = frozenset(("/agentspec/save", "/agentspec/load"))
TENANTS_PREFIX = "/agentspec/"  # what a tenant has learned is the tenant's alone
METRICS_PATH = "/metrics"
OPEN_PATHS = frozenset(("/health", "/ping", METRICS_PATH))


@dataclass(frozen=True, slots=True)
class ApiKey:
    """One key that opens this gateway, which is known by its digest alone.

    Attributes:
        digest: SHA-256 of the key.
        requests_per_minute, max_concurrent: None = no limit.
    """

    digest: bytes
    tenant: str = DEFAULT_TENANT
    requests_per_minute: int | None = None
    max_concurrent: int | None = None


@dataclass(frozen=True, slots=True)
class Caller:
    """Who a request is from.

    Attributes:
        is_operator: may use what concerns all tenants.
    """

    tenant: str
    limits: KeyLimits
    is_operator: bool = False


class ApiKeys:
    """The keys that open this gateway. Without any, everybody is the default tenant.

    Keys are looked up by a digest of their digest under a secret of this process: no timing tells anything of
    those that are known.

    Args:
        keys: each digest once.
        before: what was in force until now; who keeps a key with the same limits keeps their state.
    """

    def __init__(self, keys: Iterable[ApiKey] = (), before: ApiKeys | None = None) -> None:
        self._secret: bytes = secrets.token_bytes(32) if before is None else before._secret
        known = {} if before is None else before._callers
        self._keys: dict[bytes, ApiKey] = {}
        self._callers: dict[ApiKey, Caller] = {}
        for key in keys:
            self._keys[self._index(key.digest)] = key
            self._callers[key] = known.get(key) or Caller(key.tenant, _limits(key))
        self._nobody = Caller(DEFAULT_TENANT, KeyLimits(None, None, time.monotonic))

    @classmethod
    def parse(cls, texts: Iterable[str]) -> ApiKeys:
        """Keys written ``KEY`` or ``KEY=TENANT``.

        Raises:
            ConfigError: a key is empty or given to two tenants.
            StageError: a tenant's name is malformed.
        """
        return cls(parse_keys(texts))

    @classmethod
    def from_environment(cls) -> ApiKeys:
        """Those in ``$AGENTSPEC_API_KEYS``, comma-separated. Raises as :meth:`parse`."""
        texts = os.environ.get(API_KEYS_VARIABLE, "").split(",")
        return cls.parse(text.strip() for text in texts if text.strip())

    def __bool__(self) -> bool:
        return bool(self._keys)

    def caller(self, given: str | None) -> Caller:
        """Whose key it is that a request carries. Raises AuthError."""
        if not self._keys:
            return self._nobody
        if given is None:
            raise AuthError("an API key is needed: send 'Authorization: Bearer KEY'")
        digest = digest_of(given)
        key = self._keys.get(self._index(digest))
        if key is None or not hmac.compare_digest(key.digest, digest):
            raise AuthError("this API key is not known here")
        return self._callers[key]

    def _index(self, digest: bytes) -> bytes:
        return blake2b(digest, key=self._secret, digest_size=16).digest()


class Authenticate:
    """Lets tenants in by their keys, and operators to their own paths by theirs.

    The caller goes to ``scope[CALLER_KEY]``, the tenant to ``scope[TENANT_KEY]``. Where there is no key at
    all, whoever is on this machine is an operator. With an operator's key, ``/metrics``, which tells of every
    tenant, needs it too.

    Args:
        admin_key: the digest of the operator's key.
    """

    def __init__(self, app: ASGIApp, keys: ApiKeys, admin_key: bytes | None = None) -> None:
        self._app = app
        self.keys = keys
        self.admin_key = admin_key
        self._operator = Caller(DEFAULT_TENANT, KeyLimits(None, None, time.monotonic), is_operator=True)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 401 or 403."""
        if scope["type"] == "http":
            try:
                scope = self._admitted(scope)
            except (AuthError, ForbiddenError) as error:
                reply = Reply(send)
                if isinstance(error, AuthError):
                    reply.headers.append((b"www-authenticate", b"Bearer"))
                await reply.fail(error)
                return
        await self._app(scope, receive, send)

    def _admitted(self, scope: Scope) -> Scope:
        path, given = scope["path"], given_key(Headers(scope=scope))
        if path in OPERATOR_PATHS or (path == METRICS_PATH and self.admin_key):
            self._check_operator(scope, given)
        elif path not in OPEN_PATHS:
            is_operators = self._is_admin(given) and not path.startswith(TENANTS_PREFIX)
            caller = self._operator if is_operators else self.keys.caller(given)
            return {**scope, TENANT_KEY: caller.tenant, CALLER_KEY: caller}
        return scope

    def _is_admin(self, given: str | None) -> bool:
        if self.admin_key is None:
            return not self.keys
        return given is not None and hmac.compare_digest(digest_of(given), self.admin_key)

    def _check_operator(self, scope: Scope, given: str | None) -> None:
        if self.admin_key is not None:
            if given is None:
                raise AuthError("the operator's key is needed: send 'Authorization: Bearer KEY'")
            if not self._is_admin(given):
                raise ForbiddenError("this key is not the operator's")
        elif self.keys:
            raise ForbiddenError("this is for operators, and there is no operator's key: give --admin-key")
        elif "origin" in Headers(scope=scope) or not _is_on_this_machine(scope):
            # any web page can ask a local browser
            raise ForbiddenError("without an operator's key this is for programs on the same machine only")


def parse_keys(texts: Iterable[str]) -> list[ApiKey]:
    """Keys written ``KEY`` or ``KEY=TENANT``. Raises as :meth:`ApiKeys.parse`."""
    tenants: dict[str, str] = {}
    for position, text in enumerate(texts, 1):
        key, equals, tenant = text.rpartition("=")
        if not equals or not tenant:  # "abc==" is a key in base64, not a key of no tenant
            key, tenant = text, DEFAULT_TENANT
        if not key or not key.isascii() or not key.isprintable() or {" ", ","} & set(key):
            raise ConfigError(
                f"API key number {position} is empty, or has a comma or a character no header carries"
            )
        StageKey(tenant, (DEFAULT_STAGE,))  # checks the name
        if tenants.setdefault(key, tenant) != tenant:
            raise ConfigError(f"one API key is given to two tenants: {tenants[key]!r} and {tenant!r}")
    return [ApiKey(digest_of(key), tenant) for key, tenant in tenants.items()]


def digest_of(key: str) -> bytes:
    """What is kept of a key."""
    return sha256(key.encode("utf-8", "surrogateescape")).digest()


def given_key(headers: Headers) -> str | None:
    """The key that a request carries, as OpenAI's clients send it or as Anthropic's do; None without one."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and key.strip():
        return key.strip()
    return headers.get("x-api-key") or None


def _limits(key: ApiKey) -> KeyLimits:
    return KeyLimits(key.requests_per_minute, key.max_concurrent, time.monotonic)


def _is_on_this_machine(scope: Scope) -> bool:
    host, _ = scope.get("client") or ("", 0)
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
