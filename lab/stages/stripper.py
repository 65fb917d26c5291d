"""A proxy that removes a call's stage tags, and records the stage that the gateway assigns without them.

It removes our stage and session headers, the stage in the URL, W3C baggage, and the body's ``metadata``. The
gateway's own stage resolvers read the removed tags as the ground truth, so any client will do.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from agentspec.errors import RequestError
from agentspec.gateway.http.context import context_of
from agentspec.gateway.stages.read_tags import UrlTagsMiddleware
from agentspec.gateway.stages.resolver import StageHints, resolve_stage
from agentspec.stages import DEFAULT_STAGE, DEFAULT_TENANT
from agentspec.wire import (
    SESSION_HEADER,
    STAGE_HEADER,
    STAGE_SOURCE_HEADER,
    WORKFLOW_HEADER,
    decode_stage,
)
from lab.stages.partition import adjusted_rand_index
from lab.stages.untagged import Untagged, truth

FOUND = "fingerprint"
TELLING = frozenset({STAGE_HEADER, SESSION_HEADER, WORKFLOW_HEADER, "baggage"})
OF_THE_HOP = frozenset(
    "connection content-length host keep-alive te trailer transfer-encoding upgrade".split()
)
TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class Witnessed:
    """A call with a stage tag that was removed.

    Attributes:
        told: the tagged stage, and the body sent to the gateway.
        found: the stage that the gateway assigned.
        source: the gateway's source of that stage.
    """

    told: Untagged
    found: str
    source: str


@dataclass(slots=True)
class Findings:
    """All tagged calls in the order of their responses, and the number of untagged ones."""

    calls: list[Witnessed] = field(default_factory=list)
    num_silent: int = 0

    def summary(self) -> dict[str, Any]:
        """Return the figures; ``ari`` is of stages as served, the first calls of each included."""
        stages = truth(call.told for call in self.calls)
        found = [call.found for call in self.calls]
        by_source = [call.source == FOUND for call in self.calls]
        return {
            "num_calls": len(found),
            "num_without_stage": self.num_silent,
            "num_stages": len(set(stages)),
            "num_found": len(set(found)),
            "ari": adjusted_rand_index(stages, found) if len(set(stages)) > 1 else None,
            "share_by_fingerprint": sum(by_source) / len(found) if found else 0.0,
        }


def stripping(url: str, findings: Findings) -> UrlTagsMiddleware:
    """Return a proxy in front of the gateway at ``url``, its root."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(
            base_url=url, timeout=TIMEOUT_S, limits=limits, trust_env=False
        ) as client:
            app.state.client = client
            yield

    async def forward(request: Request) -> Response:
        raw = await request.body()
        body = _read(raw)
        stripped = {name: value for name, value in body.items() if name != "metadata"}
        content = raw if stripped == body else json.dumps(stripped).encode()
        asked = request.app.state.client.build_request(
            request.method,
            httpx.URL(path=request.url.path, query=request.url.query.encode()),
            headers=_passed_on(request.headers.items(), TELLING),
            content=content,
        )
        answer = await request.app.state.client.send(asked, stream=True)
        if body:
            _note(findings, request, body, stripped, answer.headers)
        return _passing(answer)

    methods = ["GET", "POST", "PUT", "PATCH", "DELETE"]
    return UrlTagsMiddleware(
        Starlette(routes=[Route("/{path:path}", forward, methods=methods)], lifespan=lifespan)
    )


def _note(
    findings: Findings,
    request: Request,
    body: dict[str, Any],
    stripped: dict[str, Any],
    headers: httpx.Headers,
) -> None:
    if STAGE_HEADER not in headers:
        return  # not a model call
    told = _told(request, body)
    if told is None:
        findings.num_silent += 1
        return
    found, source = decode_stage(headers[STAGE_HEADER]), headers[STAGE_SOURCE_HEADER]
    findings.calls.append(Witnessed(Untagged(told, stripped), found, source))


def _told(request: Request, body: dict[str, Any]) -> str | None:
    """Return the stage that the client named; None if it named none, or an invalid one."""
    try:
        hints = StageHints(DEFAULT_TENANT, request.headers, context_of(request.scope).url_tags, body)
        stage, source = resolve_stage(hints)
    except RequestError:
        return None
    return None if source == DEFAULT_STAGE else stage.name


def _passing(answer: httpx.Response) -> Response:
    """Return a response that streams the upstream bytes as they arrive."""

    async def content() -> AsyncIterator[bytes]:
        try:
            async for chunk in answer.aiter_raw():
                yield chunk
        finally:
            await answer.aclose()

    return StreamingResponse(content(), answer.status_code, _passed_on(answer.headers.items()))


def _passed_on(headers: Iterable[tuple[str, str]], without: frozenset[str] = frozenset()) -> dict[str, str]:
    return {name: value for name, value in headers if name.lower() not in OF_THE_HOP | without}


def _read(raw: bytes) -> dict[str, Any]:
    try:
        body = json.loads(raw)
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}
