"""Requests and their latency, by endpoint and status."""

from __future__ import annotations

import logging
import time

from prometheus_client import CollectorRegistry, Counter, Histogram
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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
ENDPOINTS_WITH_NAMES = ("/v1/models", "/agentspec/stages")
BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
CLIENT_GONE = 499  # nginx's number; no client ever sees it

logger = logging.getLogger("agentspec.gateway")


class Observed:
    """Counts and times every request until its last byte."""

    def __init__(self, app: ASGIApp, registry: CollectorRegistry) -> None:
        self._app = app
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

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and count it when it is over."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, status, is_complete = time.perf_counter(), 0, False

        async def observed_send(message: Message) -> None:
            nonlocal status, is_complete
            if message["type"] == "http.response.start":
                status = message["status"]
            elif message["type"] == "http.response.body":
                is_complete = not message.get("more_body", False)
            await send(message)

        try:
            await self._app(scope, receive, observed_send)
        except Exception:
            if not status:  # the outermost layer answers for us
                status, is_complete = 500, True
            raise
        finally:
            seconds = time.perf_counter() - started
            labels = (_endpoint(scope["path"]), str(status if is_complete else CLIENT_GONE))
            self._requests.labels(*labels).inc()
            self._seconds.labels(*labels).observe(seconds)
            logger.debug("%s %s %s %.1f ms", scope["method"], scope["path"], labels[1], seconds * 1e3)


def _endpoint(path: str) -> str:
    for endpoint in ENDPOINTS_WITH_NAMES:
        if path.startswith(f"{endpoint}/"):
            return endpoint
    return path if path in ENDPOINTS else "other"
