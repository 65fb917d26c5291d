"""Middleware that gives every request an id, counts, times and logs it, and optionally creates a span."""

from __future__ import annotations

import logging
import re
import time
from itertools import product
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from agentspec.gateway.auth.api_keys import given_key
from agentspec.gateway.call import Outcome
from agentspec.gateway.http.context import RequestContext, close_context, ensure_context
from agentspec.wire import REQUEST_ID_HEADER

if TYPE_CHECKING:
    from agentspec.gateway.telemetry.tracing import Tracing

ENDPOINTS = frozenset(
    (
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/responses",
        "/v1/messages",
        "/v1/models",
        "/tokenize",
        "/detokenize",
        "/agentspec/stages",
        "/agentspec/warm",
        "/agentspec/save",
        "/agentspec/load",
        "/agentspec/events",
        "/ui",
        "/health",
        "/metrics",
    )
)
STREAMING = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")
PROBES = frozenset(("/health", "/ping", "/metrics"))  # polled constantly by machines
ENDPOINTS_WITH_NAMES = ("/v1/models", "/agentspec/stages", "/agentspec/traces")
BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
OTHER = "other"
MAX_PATH_CHARS = 200
MAX_EXEMPLAR_CHARS = 128 - len("request_id")  # OpenMetrics allows 128 for names and values
MASK = "***"
KEY_IN_PATH = re.compile(r"(?<=/)sk-[^/]*")  # some clients' base URL holds their key
CLIENT_GONE = 499  # nginx's number; no client ever sees it

logger = logging.getLogger("agentspec.gateway")


class TelemetryMiddleware:
    """The outermost middleware. Adds each request's id to the response.

    Inner layers add facts about the request to the ``record`` of its context.
    """

    def __init__(self, app: ASGIApp, registry: CollectorRegistry, tracing: Tracing | None = None) -> None:
        self._app = app
        self._tracing = tracing
        labels = ("endpoint", "status")
        self._requests = Counter(
            "agentspec_gateway_requests", "Requests to the gateway", labels, registry=registry
        )
        self._seconds = Histogram(
            "agentspec_gateway_request_seconds",
            "Time from a request's arrival to its last byte",
            labels,
            buckets=BUCKETS_S,
            registry=registry,
        )
        self._broken = Counter(
            "agentspec_gateway_broken_answers",
            "Answers that had begun and broke off, but for clients that left",
            ("endpoint", "reason"),
            registry=registry,
        )
        for endpoint, outcome in product(STREAMING, Outcome):
            if outcome is not Outcome.CLIENT_LEFT:
                self._broken.labels(endpoint, str(outcome))  # 0, so that a rate includes the first

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and log, count and trace it when it is over."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, context = time.perf_counter(), ensure_context(scope, send)
        writer, record, request_id = context.writer, context.record, context.request_id
        writer.headers.append((REQUEST_ID_HEADER.encode(), request_id.encode()))
        endpoint = _endpoint(scope["path"])
        span = None
        if self._tracing is not None and scope["path"] not in PROBES:
            span = self._tracing.begin(scope["method"], endpoint, context.headers, record)
        has_failed = False
        try:
            await self._app(scope, receive, writer.send)
        except Exception:
            has_failed = True  # the server sends the error, or breaks the response off
            if writer.status and not writer.is_complete:
                record.outcome = Outcome.INTERNAL_ERROR
            raise
        finally:
            close_context(scope)
            seconds = time.perf_counter() - started
            status = writer.status if writer.is_complete or record.is_broken else CLIENT_GONE
            if has_failed and not writer.status:
                status = 500
            labels = (endpoint, str(status))
            self._requests.labels(*labels).inc()
            self._seconds.labels(*labels).observe(seconds)
            if record.is_broken:
                self._count_broken(endpoint, str(record.outcome), request_id)
            _log(scope, context, endpoint, status, seconds)
            if span is not None and self._tracing is not None:
                self._tracing.end(span, endpoint, status, request_id, record)

    def _count_broken(self, endpoint: str, reason: str, request_id: str) -> None:
        exemplar = {"request_id": request_id[:MAX_EXEMPLAR_CHARS]}
        self._broken.labels(endpoint, reason).inc(exemplar=exemplar)


def _log(scope: Scope, context: RequestContext, endpoint: str, status: int, seconds: float) -> None:
    level = logging.DEBUG if scope["path"] in PROBES else logging.INFO
    if not logger.isEnabledFor(level):
        return
    fields = {
        "request_id": context.request_id,
        "method": scope["method"],
        "endpoint": endpoint,
        "status": status,
        "ms": round(seconds * 1e3, 1),
        **context.record.fields(),
    }
    if status == 404 or endpoint == OTHER:
        fields["path"] = _shown(scope["path"], context.headers)
    logger.log(level, "call", extra={"fields": fields})


def _endpoint(path: str) -> str:
    for endpoint in ENDPOINTS_WITH_NAMES:
        if path.startswith(f"{endpoint}/"):
            return endpoint
    return path if path in ENDPOINTS else OTHER


def _shown(path: str, headers: Headers) -> str:
    """Return the path for the log: short, printable, and without anything that resembles a key."""
    given = given_key(headers)
    path = KEY_IN_PATH.sub(MASK, path.replace(given, MASK) if given else path)
    if len(path) > MAX_PATH_CHARS:
        path = path[:MAX_PATH_CHARS] + "..."
    return path if path.isprintable() else ascii(path)[1:-1]
