"""Middleware that tags requests inside vLLM's own server, without a gateway process.

``--middleware agentspec.gateway.zero_hop.ZeroHop``. Requests get the same tags as from the gateway.
Responses pass unchanged except for the headers that name the stage. ``$AGENTSPEC_API_KEYS`` holds the keys.
Stages of untagged requests are discovered, and kept in ``$AGENTSPEC_DISCOVERY_FILE`` if that is set.
``$AGENTSPEC_DATA_PARALLEL_SIZE`` is the number of data-parallel ranks: requests name their stage's rank.
"""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agentspec.gateway.auth.api_keys import ApiKeys, RuntimeConfig
from agentspec.gateway.auth.middleware import OPEN_PATHS, AuthMiddleware, is_for_tenants
from agentspec.gateway.call import Endpoint
from agentspec.gateway.control.cluster_routes import CLUSTERS_PATH, discovery_app
from agentspec.gateway.discovery.service import Discovery, Listener
from agentspec.gateway.errors import ForbiddenError
from agentspec.gateway.http.api_response import ApiResponse
from agentspec.gateway.http.cancellation import ClientGoneError
from agentspec.gateway.http.context import context_of
from agentspec.gateway.http.request_body import parse_body, read_body
from agentspec.gateway.settings import DiscoverySettings, GatewaySettings, RoutingSettings
from agentspec.gateway.stages.read_tags import UrlTagsMiddleware, read_tags, with_xargs
from agentspec.gateway.upstreams.routing import RANK_HEADER, DataParallelRanks
from agentspec.gateway.upstreams.sampler_limits import check_room
from agentspec.tags import Tags
from agentspec.wire import OWN_PREFIX

TAGGED_PATHS = frozenset(Endpoint)


class ZeroHop:
    """Tags requests and finds their tenants, in front of the server ``app``.

    Raises:
        ConfigError, StageError: a key in ``$AGENTSPEC_API_KEYS`` is malformed.
        ConfigError: the file in ``$AGENTSPEC_DISCOVERY_FILE`` can't be used, or
            ``$AGENTSPEC_DATA_PARALLEL_SIZE`` is not a number from 1 on.
    """

    def __init__(self, app: ASGIApp) -> None:
        runtime = RuntimeConfig(ApiKeys.from_environment())
        discovery = Discovery(DiscoverySettings.from_environment())
        tagging = ZeroHopTagging(app, runtime.limits, discovery, DataParallelRanks.from_environment())
        self._plain = app
        self._clusters = AuthMiddleware(discovery_app(discovery), runtime)
        self._app = UrlTagsMiddleware(
            AuthMiddleware(TaggedOnly(tagging) if runtime.keys else tagging, runtime)
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, tagged if it generates."""
        if _is_about_clusters(scope):
            await self._clusters(scope, receive, send)
        else:
            await (self._plain if _is_not_ours(scope) else self._app)(scope, receive, send)


class TaggedOnly:
    """Rejects requests that are neither tagged nor known to be harmless. Used where tenants have keys.

    An untagged generation would belong to no tenant.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on tagged and harmless requests; reject the rest."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        elif scope["type"] == "http" and not self._is_allowed(scope):
            error = ForbiddenError(f"{scope['method']} {scope['path']} is closed: tenants have API keys here")
            await ApiResponse(context_of(scope).writer).fail(error)
        else:
            await self._app(scope, receive, send)

    def _is_allowed(self, scope: Scope) -> bool:
        method, path = scope["method"], scope["path"]
        return path in TAGGED_PATHS or path in OPEN_PATHS or is_for_tenants(method, path)


class ZeroHopTagging:
    """Writes a request's tags into its body's ``vllm_xargs``, and the rank of its stage into a header."""

    def __init__(
        self,
        app: ASGIApp,
        limits: GatewaySettings,
        discovery: Discovery | None = None,
        ranks: DataParallelRanks | None = None,
    ) -> None:
        self._app = app
        self._limits = limits
        self._discovery = discovery
        self._ranks = ranks or DataParallelRanks(1)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on with its tags, or answer with an error in OpenAI's form."""
        if scope["type"] != "http" or scope["method"] != "POST" or scope["path"] not in TAGGED_PATHS:
            await self._app(scope, receive, send)
            return
        try:
            tags, body, listener = await self._read(scope, receive)
        except ClientGoneError:
            return
        except Exception as error:
            await ApiResponse(context_of(scope).writer).fail(error)
            return
        given, spill = context_of(scope).headers.get(RANK_HEADER), RoutingSettings().spill
        with self._ranks.entered(str(tags.stage), given, spill) as rank:
            await self._app(
                _with_headers(scope, len(body), rank),
                *self._heard(listener, _replayed(body, receive), _naming(tags, send)),
            )

    def _heard(self, listener: Listener | None, receive: Receive, send: Send) -> tuple[Receive, Send]:
        """Return both such that discovery hears an answer that the client received as a whole."""
        if listener is None or self._discovery is None:
            return receive, send
        discovery, status = self._discovery, 0

        async def receive_heard() -> Message:
            nonlocal status
            message = await receive()
            status = 0 if message["type"] == "http.disconnect" else status
            return message

        async def send_heard(message: Message) -> None:
            nonlocal status
            await send(message)
            status = message.get("status", status)
            if message["type"] == "http.response.body":
                listener(message.get("body", b""))
                if status == 200 and not message.get("more_body", False):
                    discovery.hear(listener)

        return receive_heard, send_heard

    async def _read(self, scope: Scope, receive: Receive) -> tuple[Tags, bytes, Listener | None]:
        context = context_of(scope)
        num_dropped = 3 * self._limits.body_limit_bytes
        raw = await read_body(receive, context.headers, self._limits, num_dropped=num_dropped)
        body = parse_body(raw)
        if _has_limits(scope):
            check_room(body, has_plugin=True)
        tenant = context.principal.tenant
        tags = read_tags(tenant, context.headers, context.url_tags, body, self._discovery)
        listener = self._discovery.listener(body, len(raw)) if self._discovery and tags.learn else None
        return tags, with_xargs(raw, body, tags.to_xargs()), listener


def _has_limits(scope: Scope) -> bool:
    """Return whether requests could end this vLLM: not with its model runner V1."""
    engine = getattr(scope["app"].state, "engine_client", None) if "app" in scope else None
    return bool(getattr(getattr(engine, "vllm_config", None), "use_v2_model_runner", True))


def _is_about_clusters(scope: Scope) -> bool:
    if scope["type"] != "http" or scope["method"] == "OPTIONS":
        return False
    return f"{scope['path']}/".startswith(f"{CLUSTERS_PATH}/")


def _is_not_ours(scope: Scope) -> bool:
    """Return True for the control channel, which checks its own token, and for preflights, without a key."""
    if scope["type"] != "http":
        return False
    return scope["method"] == "OPTIONS" or str(scope["path"]).startswith(OWN_PREFIX)


def _with_headers(scope: Scope, num_bytes: int, rank: str | None) -> Scope:
    dropped = (b"content-encoding", b"content-length", b"transfer-encoding")
    headers = [(name, value) for name, value in scope["headers"] if name.lower() not in dropped]
    headers.append((b"content-length", b"%d" % num_bytes))
    if rank is not None:
        headers.append((RANK_HEADER.encode(), rank.encode()))
    return {**scope, "headers": headers}


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Return a ``receive`` that replays the body in one piece, then passes messages such as a disconnect."""
    unread: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return unread.pop() if unread else await receive()

    return replay


def _naming(tags: Tags, send: Send) -> Send:
    """Return a ``send`` that adds the headers that name the stage."""

    async def send_named(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *tags.response_headers()]}
        await send(message)

    return send_named
