"""``/agentspec/...``: statistics, traces, eviction and warming of trees, for tenants and operators.

A tenant has access to its own data only; an operator may read all tenants' data. Saving and loading concern
all tenants and are the operator's. ``auth`` enforces both. A request that names a file needs an operator's
key; the engine checks the file.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from agentspec.errors import RequestError, StageError
from agentspec.gateway.auth.api_keys import RuntimeConfig
from agentspec.gateway.errors import ForbiddenError, UnknownTraceError
from agentspec.gateway.http.context import context_of, is_request_id
from agentspec.gateway.http.request_body import parse_body, read_body
from agentspec.gateway.openai.messages import read_text
from agentspec.gateway.upstreams.upstream import Upstream
from agentspec.gateway.upstreams.usage import describe_stages
from agentspec.generation import PastOutput
from agentspec.stages import DEFAULT_STAGE, StageKey
from agentspec.wire import OWN_PREFIX

# clients choose names of stages, so there may be any number of them
DEFAULT_STAGES = 100
MAX_STAGES = 1_000
MAX_OFFSET = 99_999_999
MAX_SHOWN = 40


def control_routes(upstream: Upstream, runtime: RuntimeConfig) -> list[Route]:
    """Return the routes, for either kind of upstream."""

    async def stages(request: Request) -> Response:
        tenant = context_of(request.scope).tenant  # None: all
        limit = _number(request, "limit", DEFAULT_STAGES, 1, MAX_STAGES)
        offset = _number(request, "offset", 0, 0, MAX_OFFSET)
        seen = await upstream.stats()
        own = [(stage, stats) for stage, stats in seen.items() if tenant in (None, stage.tenant)]
        end = offset + limit
        page = {
            "age_s": round(upstream.stats_age_s, 3),
            "num_stages": len(own),
            "next_offset": end if end < len(own) else None,
        }
        return JSONResponse({**page, **describe_stages(dict(own[offset:end]))})

    async def trace(request: Request) -> Response:
        tenant, request_id = context_of(request.scope).tenant, request.path_params["request_id"]
        steps = await upstream.trace(tenant, request_id) if is_request_id(request_id) else None
        if steps is None:
            raise UnknownTraceError(f"there is no trace of {request_id!r} (any more)")
        return JSONResponse({"steps": steps})

    async def evict(request: Request) -> Response:
        stage = StageKey.parse(request.path_params["stage"], context_of(request.scope).principal.tenant)
        return JSONResponse(await upstream.evict(stage))

    async def warm(request: Request) -> Response:
        tenant = context_of(request.scope).principal.tenant
        outputs = read_past_outputs(await read_body(request.receive, request.headers, runtime.limits), tenant)
        return JSONResponse(await upstream.warm(tenant, outputs))

    def with_file(work: Callable[[str | None], Awaitable[dict[str, Any]]]) -> Callable[..., Any]:
        async def answer(request: Request) -> Response:
            path = _path(await read_body(request.receive, request.headers, runtime.limits))
            if path is not None and runtime.admin_key is None:
                raise ForbiddenError(
                    "naming a file needs an operator's key, and the server has none: give it one by "
                    "--admin-key, $AGENTSPEC_ADMIN_KEY or admin_key_sha256"
                )
            return JSONResponse(await work(path))

        return answer

    return [
        Route(f"{OWN_PREFIX}stages", stages),
        Route(f"{OWN_PREFIX}stages/{{stage:path}}", evict, methods=["DELETE"]),
        Route(f"{OWN_PREFIX}traces/{{request_id}}", trace),
        Route(f"{OWN_PREFIX}warm", warm, methods=["POST"]),
        Route(f"{OWN_PREFIX}save", with_file(upstream.save), methods=["POST"]),
        Route(f"{OWN_PREFIX}load", with_file(upstream.load), methods=["POST"]),
    ]


def _number(request: Request, name: str, default: int, low: int, high: int) -> int:
    """Return a number of the query. Raises RequestError if it is none between ``low`` and ``high``."""
    text = request.query_params.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 9 and low <= int(text) <= high):
        raise RequestError(
            f"{name} must be an integer from {low} to {high}, not {text[:MAX_SHOWN]!r}", param=name
        )
    return int(text)


def _path(raw: bytes) -> str | None:
    """Return ``path`` from a body that may be empty. Raises RequestError if it is not a string."""
    path = parse_body(raw).get("path") if raw.strip() else None
    if path is not None and (not isinstance(path, str) or not path):
        raise RequestError(f"path must be a non-empty string, not {path!r}", param="path")
    return path


def read_past_outputs(raw: bytes, tenant: str) -> list[PastOutput]:
    """Return the outputs in ``raw``, in order. Raises RequestError, with the number of an invalid line."""
    outputs: list[PastOutput] = []
    for number, line in enumerate(raw.split(b"\n"), 1):
        if line.strip():
            try:
                outputs.extend(_outputs(parse_body(line), tenant))
            except (RequestError, StageError) as error:
                raise RequestError(f"line {number}: {error}", code="invalid_line") from None
    return outputs


def _outputs(record: Mapping[str, Any], tenant: str) -> Iterator[PastOutput]:
    name = record.get("stage", DEFAULT_STAGE)
    if not isinstance(name, str):
        raise RequestError(f"stage must be a string, not {name!r}")
    stage = StageKey.parse(name, tenant)
    texts = _said(record["messages"]) if "messages" in record else [record.get("response")]
    for text in texts:
        if not isinstance(text, str):
            raise RequestError(f"response must be a string, not {text!r}")
        if text:  # an empty output teaches nothing
            yield PastOutput(stage, text)


def _said(messages: object) -> Iterator[str]:
    """Yield the assistant's texts, without tool calls: only the model's template defines their form."""
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise RequestError(f"messages must be a list of objects, not {messages!r}")
    for index, message in enumerate(messages):
        if message.get("role") == "assistant" and message.get("content"):
            yield read_text(message["content"], f"messages[{index}].content")
