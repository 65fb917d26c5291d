"""Answers all calls to the upstream: generating requests with tags, all others unchanged."""

from __future__ import annotations

import logging
from typing import Any

from starlette.types import Receive, Scope, Send

from agentspec.gateway.auth.api_keys import RuntimeConfig
from agentspec.gateway.auth.middleware import is_for_tenants, refuse_forged
from agentspec.gateway.call import VERSION, ApiCall, Endpoint, Outcome, Principal, advice, meant_path
from agentspec.gateway.dashboard.traffic import TrafficStats
from agentspec.gateway.discovery.service import Discovery, Listener
from agentspec.gateway.errors import ForbiddenError, UnknownUrlError
from agentspec.gateway.http.api_response import ApiResponse
from agentspec.gateway.http.cancellation import CancelScope, ClientGoneError, GracefulShutdown
from agentspec.gateway.http.context import RequestContext, context_of
from agentspec.gateway.http.request_body import guess_body, parse_body, read_body
from agentspec.gateway.stages.read_tags import read_tags
from agentspec.gateway.telemetry.recorder import Recorder
from agentspec.gateway.upstreams.upstream import Upstream
from agentspec.wire import OWN_PREFIX

TAGGED_PATHS = frozenset(Endpoint)
DOTS = frozenset((".", ".."))

logger = logging.getLogger("agentspec.gateway")


class CallHandler:
    """An ASGI application for all calls to one upstream."""

    def __init__(
        self,
        upstream: Upstream,
        runtime: RuntimeConfig,
        shutdown: GracefulShutdown,
        traffic_stats: TrafficStats,
        discovery: Discovery | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        self._recorder = recorder
        self._upstream = upstream
        self._runtime = runtime
        self._shutdown = shutdown
        self._traffic_stats = traffic_stats
        self._discovery = discovery

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read, tag and answer the request. Report every failure in OpenAI's form."""
        context = context_of(scope)
        request_id, record = context.request_id, context.record
        response, cancel_scope = ApiResponse(context.writer, request_id), CancelScope()
        try:
            await self._shutdown.run(
                self._answer(scope, receive, context, response, cancel_scope), cancel_scope
            )
        except ClientGoneError:
            logger.debug("%s: the client left", request_id)
            record.outcome = Outcome.CLIENT_LEFT
        except Exception as error:
            await response.fail(error)
        if response.failure is not None:
            record.outcome = Outcome.of(response.failure)

    async def _answer(
        self,
        scope: Scope,
        receive: Receive,
        context: RequestContext,
        response: ApiResponse,
        cancel_scope: CancelScope,
    ) -> None:
        principal = context.principal
        context.record.tenant = principal.tenant
        if principal.limits.is_short:
            await principal.limits.take_more()
        with principal.limits.admitted():
            call = await self._read(scope, receive, context)
            cancel_scope.cancel_on_disconnect(context.writer, receive)
            if call.tags is None:
                await self._upstream.answer(call, response)
                return
            response.headers.extend(call.tags.response_headers())
            in_flight = self._traffic_stats.begin(call.tags)
            parts = self._recorder.listen(response) if self._recorder else None
            listener = self._listener(call)
            if listener is not None:
                response.listeners.append(listener)
            try:
                await self._upstream.answer(call, response)
            finally:
                self._traffic_stats.end(in_flight, response.status)
            if response.status != 200:
                return
            if self._recorder and parts:
                self._recorder.record(call, parts)
            if self._discovery and listener and response.failure is None:
                self._discovery.hear(listener)

    def _listener(self, call: ApiCall) -> Listener | None:
        if self._discovery is None or call.tags is None or call.body is None or not call.tags.learn:
            return None
        return self._discovery.listener(call.body, len(call.raw_body))

    async def _read(self, scope: Scope, receive: Receive, context: RequestContext) -> ApiCall:
        method, path, principal = scope["method"], scope["path"], context.principal
        is_tagged = method == "POST" and path in TAGGED_PATHS
        if not is_tagged:
            _check_passing(method, path, principal)
        raw_body = await read_body(receive, context.headers, self._runtime.limits)
        tags = None
        if is_tagged:
            body: dict[str, Any] | None = parse_body(raw_body)
            tags = read_tags(
                principal.tenant,
                context.headers,
                context.url_tags,
                body or {},
                self._discovery,
                trace=context.request_id,
            )
        else:
            body = guess_body(raw_body)
            refuse_forged(raw_body, body)
        call = ApiCall(
            method=method,
            path=path if is_tagged else scope["raw_path"].decode("latin-1").partition("?")[0],
            query=scope["query_string"].decode("latin-1"),
            request_id=context.request_id,
            tenant=principal.tenant,
            headers=context.headers,
            raw_body=raw_body,
            body=body,
            tags=tags,
            record=context.record,
        )
        call.record.tags, call.record.model = tags, call.model
        return call


def _check_passing(method: str, path: str, principal: Principal) -> None:
    """Raise UnknownUrlError or ForbiddenError if an untagged call may not be forwarded."""
    segments = path[1:].split("/")
    meant = meant_path(path) if method == "POST" else None
    is_slip = meant in TAGGED_PATHS and (not segments[-1] or segments[:2] == [VERSION, VERSION])
    leads_elsewhere = not DOTS.isdisjoint(segments) or "" in segments[:-1] or "\\" in path
    if is_slip or leads_elsewhere or path.startswith(OWN_PREFIX):
        # a server that normalizes paths may map it to the engine's controls, or generate without tags
        raise UnknownUrlError(method, path, advice(path))
    if not principal.is_operator and not is_for_tenants(method, path):
        if meant is not None:
            raise UnknownUrlError(method, path, advice(path))
        raise ForbiddenError(f"{method} {path} is closed: tenants have API keys here")
