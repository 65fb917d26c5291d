"""An engine that answers ``/v1/messages`` in Anthropic's form: a text, or a tool call if there are tools."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

TEXT = {"type": "text", "text": "Hello, wörld!"}
TOOL_USE = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Paris"}}
NUM_INPUT_TOKENS, NUM_OUTPUT_TOKENS = 7, 4


async def answer(request: Request) -> Response:
    body = await request.json()
    if body["model"] != "scripted":
        error = {"type": "not_found_error", "message": "no such model"}
        return JSONResponse({"type": "error", "error": error}, 404)
    message = message_of(TOOL_USE if body.get("tools") else TEXT)
    if body.get("stream"):
        return StreamingResponse(events(message), media_type="text/event-stream")
    return JSONResponse(message)


def message_of(block: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "scripted",
        "content": [block],
        "stop_reason": "tool_use" if block is TOOL_USE else "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": NUM_INPUT_TOKENS, "output_tokens": NUM_OUTPUT_TOKENS},
    }


def events(message: dict[str, Any]) -> Iterator[bytes]:
    yield event("message_start", message={**message, "content": [], "stop_reason": None})
    for index, block in enumerate(message["content"]):
        if block["type"] == "tool_use":
            empty = {**block, "input": {}}
            text = json.dumps(block["input"])
            deltas = [{"type": "input_json_delta", "partial_json": part} for part in (text[:5], text[5:])]
        else:
            empty = {**block, "text": ""}
            deltas = [{"type": "text_delta", "text": part} for part in block["text"]]
        yield event("content_block_start", index=index, content_block=empty)
        for delta in deltas:
            yield event("content_block_delta", index=index, delta=delta)
        yield event("content_block_stop", index=index)
    end = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    yield event("message_delta", delta=end, usage={"output_tokens": NUM_OUTPUT_TOKENS})
    yield event("message_stop")


def event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


app = Starlette(routes=[Route("/v1/messages", answer, methods=["POST"])])
