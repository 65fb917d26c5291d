"""An engine that makes coding agents start sub-agents, in the form of Anthropic and of OpenAI's responses.

``app.state.asked`` has the endpoint, stage and session of each call.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tests.clients.support.anthropic_server import events

TIMEOUT_S = 60.0
SUB_AGENTS = ("general-purpose", "Explore")
SPAWNED = {"agent_type": "explorer", "message": "Look at it.", "task_name": "look"}
USAGE = {
    "input_tokens": 7,
    "input_tokens_details": {"cached_tokens": 0},
    "output_tokens": 4,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 11,
}


async def message(request: Request) -> Response:
    body = await _asked(request)
    blocks = _tool_uses() if _is_new_main_agent(body) else [{"type": "text", "text": "Done."}]
    answer = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": body["model"],
        "content": blocks,
        "stop_reason": blocks[0]["type"] if len(blocks) > 1 else "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 7, "output_tokens": 4},
    }
    if not body.get("stream"):
        return JSONResponse(answer)
    return StreamingResponse(events(answer), media_type="text/event-stream")


async def response(request: Request) -> Response:
    body = await _asked(request)
    is_sub_agent = "x-openai-subagent" in request.headers
    is_new = not is_sub_agent and "function_call_output" not in {item.get("type") for item in body["input"]}
    if is_sub_agent:
        request.app.state.has_spawned.set()
    elif not is_new:  # an answer would end it and its sub-agents
        await asyncio.wait_for(request.app.state.has_spawned.wait(), TIMEOUT_S)
    return StreamingResponse(_response_events(body["model"], is_new), media_type="text/event-stream")


async def _asked(request: Request) -> Any:
    body = await request.json()
    session = body.get("vllm_xargs", {}).get("agentspec_session")
    request.app.state.asked.append((request.url.path, request.headers["x-agentspec-stage"], session))
    return body


def _is_new_main_agent(body: Any) -> bool:
    tools = {tool["name"] for tool in body.get("tools") or []}
    is_sub_agent = "cc_is_subagent" in json.dumps(body.get("system"))
    return "Agent" in tools and not is_sub_agent and "tool_result" not in json.dumps(body["messages"])


def _tool_uses() -> list[dict[str, Any]]:
    return [
        {
            "type": "tool_use",
            "id": f"toolu_{kind}",
            "name": "Agent",
            "input": {"description": "look", "prompt": "Look at it.", "subagent_type": kind},
        }
        for kind in SUB_AGENTS
    ]


def _response_events(model: str, is_new: bool) -> Iterator[bytes]:
    item: dict[str, Any] = {"id": "item_1", "status": "completed"}
    if is_new:
        arguments = json.dumps(SPAWNED)
        item |= {"type": "function_call", "call_id": "call_1", "arguments": arguments}
        item |= {"name": "spawn_agent", "namespace": "multi_agent_v1"}
    else:
        text = {"type": "output_text", "text": "Done.", "annotations": []}
        item |= {"type": "message", "role": "assistant", "content": [text]}
    whole = {"id": "resp_1", "object": "response", "model": model, "status": "completed", "usage": USAGE}
    yield _event("response.created", response={**whole, "status": "in_progress", "output": []})
    yield _event("response.output_item.done", output_index=0, item=item)
    yield _event("response.completed", response={**whole, "output": [item]})


def _event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


def coding_app() -> Starlette:
    """Return a new app without recorded calls."""
    routes = [
        Route("/v1/messages", message, methods=["POST"]),
        Route("/v1/responses", response, methods=["POST"]),
    ]
    app = Starlette(routes=routes)
    app.state.asked, app.state.has_spawned = [], asyncio.Event()
    return app
