"""Authentication and authorization: tenants by API key, operators by the admin key.

Engines have more ways to generate than the tagged calls: audio, raw tokens, other clouds' APIs. Some of them
let a client write its own tags. Engines also have switches that no tenant should reach. Where tenants have
keys, every path that is not known to be harmless is the operator's.
"""

from __future__ import annotations

import hmac
import ipaddress
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl

from starlette.types import ASGIApp, Receive, Scope, Send

from agentspec.errors import RequestError
from agentspec.gateway.auth.api_keys import RuntimeConfig, digest_of, given_key
from agentspec.gateway.call import Principal, RateLimits
from agentspec.gateway.errors import AuthError, ForbiddenError
from agentspec.gateway.http.api_response import ApiResponse
from agentspec.gateway.http.context import RequestContext, ensure_context
from agentspec.stages import DEFAULT_TENANT
from agentspec.wire import OWN_PREFIX, XARGS_PREFIX

# sent by a web page in a local browser, or by a proxy on this machine for another client
FROM_ELSEWHERE = frozenset(("origin", "forwarded", "x-forwarded-for"))
OPERATOR_PATHS = frozenset(("/agentspec/save", "/agentspec/load"))
READING_METHODS = frozenset(("GET", "HEAD"))
METRICS_PATH = "/metrics"
UI_PATH = "/ui"  # a page without data
OPEN_PATHS = frozenset(("/health", "/ping", METRICS_PATH, UI_PATH))
READING = frozenset(("GET", "HEAD", "OPTIONS"))
# none of these generates
HARMLESS_PATHS = frozenset(
    (
        "/v1/embeddings",
        "/v1/messages/count_tokens",
        "/v1/rerank",
        "/v1/score",
        "/classify",
        "/detokenize",
        "/pooling",
        "/rerank",
        "/score",
        "/tokenize",
        "/v2/rerank",
    )
)


class AuthMiddleware:
    """Admits tenants by their API keys, and operators to the operator paths by the admin key.

    Sets ``principal`` and ``tenant`` of the request's context. An operator may read the tenants' data. The
    tenant is then the one that ``?tenant=`` names, or None for all of them. If no keys are configured,
    programs on this machine may use the operator paths. With an admin key, ``/metrics`` needs it too,
    because it covers every tenant.
    """

    def __init__(self, app: ASGIApp, runtime: RuntimeConfig) -> None:
        self._app = app
        self._runtime = runtime
        self._operator = Principal(DEFAULT_TENANT, RateLimits(None, None, time.monotonic), is_operator=True)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 401 or 403."""
        if scope["type"] == "http":
            context = ensure_context(scope, send)
            try:
                self._admit(scope, context)
                context.writer.is_client_known = scope["path"] not in OPEN_PATHS
            except (AuthError, ForbiddenError) as error:
                response = ApiResponse(context.writer)
                if isinstance(error, AuthError):
                    response.headers.append((b"www-authenticate", b"Bearer"))
                await response.fail(error)
                return
        await self._app(scope, receive, send)

    def _admit(self, scope: Scope, context: RequestContext) -> None:
        path, given = scope["path"], given_key(context.headers)
        if path in OPERATOR_PATHS or (path == METRICS_PATH and self._runtime.admin_key):
            self._check_operator(scope, context, given)
        elif path not in OPEN_PATHS:
            is_tenants = path.startswith(OWN_PREFIX)  # each tenant's learned data is private
            if is_tenants and self._runtime.admin_key is not None and self._is_admin(given):
                if scope["method"] not in READING_METHODS:
                    raise ForbiddenError(
                        "the operator's key sees every tenant and changes none: use a key of the tenant"
                    )
                context.tenant, context.principal = _named_tenant(scope), self._operator
                return
            is_operators = self._is_admin(given) and not is_tenants
            principal = self._operator if is_operators else self._runtime.keys.principal(given)
            context.tenant, context.principal = principal.tenant, principal

    def _is_admin(self, given: str | None) -> bool:
        if self._runtime.admin_key is None:
            return not self._runtime.keys
        return given is not None and hmac.compare_digest(digest_of(given), self._runtime.admin_key)

    def _check_operator(self, scope: Scope, context: RequestContext, given: str | None) -> None:
        if self._runtime.admin_key is not None:
            if given is None:
                raise AuthError("the operator's key is needed: send 'Authorization: Bearer KEY'")
            if not self._is_admin(given):
                raise ForbiddenError("this key is not the operator's")
        elif self._runtime.keys:
            raise ForbiddenError("this is for operators, and there is no operator's key: give --admin-key")
        elif not FROM_ELSEWHERE.isdisjoint(context.headers) or not _is_on_this_machine(scope):
            raise ForbiddenError("without an operator's key this is for programs on the same machine only")


def _named_tenant(scope: Scope) -> str | None:
    """Return the tenant that an operator asks for; None = all."""
    query: bytes = scope.get("query_string", b"")
    return dict(parse_qsl(query.decode("latin-1"))).get("tenant")


def _is_on_this_machine(scope: Scope) -> bool:
    host, _ = scope.get("client") or ("", 0)
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_for_tenants(method: str, path: str) -> bool:
    """Return True if any tenant may send this request, which is forwarded unchanged."""
    return path in HARMLESS_PATHS or (method in READING and path.startswith("/v1/"))


def refuse_forged(raw: bytes, body: Mapping[str, Any] | None) -> None:
    """Raise RequestError if a body that gets no tags contains some, in ``vllm_xargs`` or elsewhere."""
    is_suspect = XARGS_PREFIX.encode() in raw or b"\\u" in raw or b"\0" in raw  # escaped, or in UTF-16
    if not is_suspect:
        return
    is_forged = XARGS_PREFIX.encode() in raw if body is None else _has_tag(list(body.values()))
    if is_forged:
        raise RequestError(f"only the gateway writes what begins with {XARGS_PREFIX!r}", code="forged_tag")


def _has_tag(values: list[Any]) -> bool:
    """Return True if a key at any depth has the prefix of our tags."""
    while values:
        value = values.pop()
        if isinstance(value, dict):
            if any(key.startswith(XARGS_PREFIX) for key in value):
                return True
            values.extend(value.values())
        elif isinstance(value, list):
            values.extend(value)
    return False
