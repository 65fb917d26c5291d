"""Who is asking: API keys, the tenant that each stands for, and the operator's own."""

from __future__ import annotations

import hmac
import ipaddress
import os
from collections.abc import Iterable
from hashlib import sha256

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from agentspec.errors import ConfigError
from agentspec.gateway.errors import AuthError, ForbiddenError
from agentspec.gateway.reply import Reply
from agentspec.stages import DEFAULT_STAGE, DEFAULT_TENANT, StageKey

TENANT_KEY = "agentspec.tenant"
API_KEYS_VARIABLE = "AGENTSPEC_API_KEYS"
OPERATOR_PATHS = frozenset(("/agentspec/save", "/agentspec/load"))
METRICS_PATH = "/metrics"
OPEN_PATHS = frozenset(("/health", "/ping", METRICS_PATH))


class ApiKeys:
    """The keys that open this gateway. Without any, everybody is the default tenant.

    Only digests are kept, and every one is compared on every request: neither memory nor timing
    tells a key.
    """

    def __init__(self, tenants: dict[str, str] | None = None) -> None:
        self._tenants = [(_digest(key), tenant) for key, tenant in (tenants or {}).items()]

    @classmethod
    def parse(cls, texts: Iterable[str]) -> ApiKeys:
        """Keys written ``KEY`` or ``KEY=TENANT``.

        Raises:
            ConfigError: a key is empty or given to two tenants.
            StageError: a tenant's name is malformed.
        """
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
        return cls(tenants)

    @classmethod
    def from_environment(cls) -> ApiKeys:
        """Those in ``$AGENTSPEC_API_KEYS``, comma-separated. Raises as :meth:`parse`."""
        texts = os.environ.get(API_KEYS_VARIABLE, "").split(",")
        return cls.parse(text.strip() for text in texts if text.strip())

    def __bool__(self) -> bool:
        return bool(self._tenants)

    def tenant_of(self, authorization: str | None) -> str:
        """The tenant whose key an ``Authorization`` header carries. Raises AuthError."""
        if not self._tenants:
            return DEFAULT_TENANT
        digest, found = _digest(_bearer(authorization)), None
        for known, tenant in self._tenants:
            if hmac.compare_digest(digest, known):
                found = tenant
        if found is None:
            raise AuthError("this API key is not known here")
        return found


class Authenticate:
    """Lets tenants in by their keys, and operators to their own paths by theirs.

    The tenant goes to ``scope[TENANT_KEY]``. Where there is no key at all, whoever is on this machine is an
    operator. With an operator's key, ``/metrics``, which tells of every tenant, needs it too.
    """

    def __init__(self, app: ASGIApp, keys: ApiKeys, admin_key: str | None = None) -> None:
        self._app = app
        self._keys = keys
        self._admin = _digest(admin_key) if admin_key else None

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
        path, headers = scope["path"], Headers(scope=scope)
        if path in OPERATOR_PATHS or (path == METRICS_PATH and self._admin):
            self._check_operator(scope, headers)
        elif path not in OPEN_PATHS:
            return {**scope, TENANT_KEY: self._keys.tenant_of(headers.get("authorization"))}
        return scope

    def _check_operator(self, scope: Scope, headers: Headers) -> None:
        if self._admin is not None:
            if not hmac.compare_digest(_digest(_bearer(headers.get("authorization"))), self._admin):
                raise ForbiddenError("this key is not the operator's")
        elif self._keys:
            raise ForbiddenError("this is for operators, and there is no operator's key: give --admin-key")
        elif "origin" in headers or not _is_on_this_machine(scope):  # any web page can ask a local browser
            raise ForbiddenError("without an operator's key this is for programs on the same machine only")


def _bearer(authorization: str | None) -> str:
    """The key that the header carries. Raises AuthError if it carries none."""
    scheme, _, key = (authorization or "").partition(" ")
    if scheme.lower() != "bearer" or not key.strip():
        raise AuthError("an API key is needed: send 'Authorization: Bearer KEY'")
    return key.strip()


def _digest(key: str) -> bytes:
    return sha256(key.encode("utf-8", "surrogateescape")).digest()


def _is_on_this_machine(scope: Scope) -> bool:
    host, _ = scope.get("client") or ("", 0)
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
