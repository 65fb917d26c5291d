"""Who is asking: API keys, and the tenant that each stands for."""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from hashlib import sha256

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from agentspec.errors import ConfigError
from agentspec.gateway.errors import AuthError
from agentspec.gateway.reply import Reply
from agentspec.stages import DEFAULT_STAGE, DEFAULT_TENANT, StageKey

TENANT_KEY = "agentspec.tenant"


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
            if not key or not key.isascii() or not key.isprintable() or " " in key:
                raise ConfigError(f"API key number {position} is empty or has a character no header carries")
            StageKey(tenant, (DEFAULT_STAGE,))  # checks the name
            if tenants.setdefault(key, tenant) != tenant:
                raise ConfigError(f"one API key is given to two tenants: {tenants[key]!r} and {tenant!r}")
        return cls(tenants)

    def __bool__(self) -> bool:
        return bool(self._tenants)

    def tenant_of(self, authorization: str | None) -> str:
        """The tenant whose key an ``Authorization`` header carries. Raises AuthError."""
        if not self._tenants:
            return DEFAULT_TENANT
        scheme, _, key = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            raise AuthError("an API key is needed: send 'Authorization: Bearer KEY'")
        digest, found = _digest(key.strip()), None
        for known, tenant in self._tenants:
            if hmac.compare_digest(digest, known):
                found = tenant
        if found is None:
            raise AuthError("this API key is not known here")
        return found


class Authenticate:
    """Lets only known keys reach ``/v1``; the tenant goes to ``scope[TENANT_KEY]``."""

    def __init__(self, app: ASGIApp, keys: ApiKeys) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 401."""
        if scope["type"] == "http" and scope["path"].startswith("/v1/"):
            try:
                tenant = self._keys.tenant_of(Headers(scope=scope).get("authorization"))
            except AuthError as error:
                reply = Reply(send)
                reply.headers.append((b"www-authenticate", b"Bearer"))
                await reply.fail(error)
                return
            scope = {**scope, TENANT_KEY: tenant}
        await self._app(scope, receive, send)


def _digest(key: str) -> bytes:
    return sha256(key.encode("utf-8", "surrogateescape")).digest()
