"""The recorded form of a call: messages or a prompt, and choices, the same for every API."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from agentspec.errors import RequestError
from agentspec.gateway.call import Endpoint
from agentspec.gateway.openai.messages import read_messages
from agentspec.gateway.openai.responses_input import read_input

Json = dict[str, Any]
# with one of these the body does not hold the complete request
MORE = ("previous_response_id", "conversation", "suffix", "echo")


def recorded_request(path: str, body: Mapping[str, Any]) -> Json:
    """Return ``messages`` and ``tools``, or ``prompt``.

    Raises RequestError if these are not the complete request, or not text.
    """
    if more := [name for name in MORE if body.get(name)]:
        raise RequestError(f"calls with {more[0]} are not recorded")
    if path == Endpoint.CHAT:
        return {"messages": read_messages(body.get("messages") or []), "tools": body.get("tools")}
    if path == Endpoint.RESPONSES:
        return {"messages": read_input(body.get("input"), body.get("instructions"))}
    if path == Endpoint.COMPLETIONS and isinstance(body.get("prompt"), str):
        return {"prompt": body["prompt"]}
    raise RequestError(f"calls of {path} are not recorded in this form")


def recorded_response(path: str, answer: bytes) -> Json:
    """Return the choices of a response, whole or streamed.

    Raises RequestError if there are none or the response is incomplete.
    """
    payloads = list(_payloads(answer))
    if path == Endpoint.RESPONSES:
        last = payloads[-1] if payloads else {}
        return {"choices": [_of_items(last.get("response", last))]}
    choices: dict[int, Json] = {}
    for payload in payloads:
        for choice in payload.get("choices") or []:
            _add(choices.setdefault(choice.get("index", 0), {}), choice)
    if not choices or any(choice.get("finish_reason") is None for choice in choices.values()):
        raise RequestError("the answer has no end")
    return {"choices": [_ended(choices[index]) for index in sorted(choices)]}


def _payloads(answer: bytes) -> Iterator[Json]:
    """Yield the object of a whole response, or the objects of its events."""
    text = answer.decode("utf-8", "replace")
    if text.lstrip()[:1] == "{":
        yield json.loads(text)
        return
    for line in text.split("\n"):
        if line.startswith("data:") and line[5:].strip() != "[DONE]":
            yield json.loads(line[5:])


def _add(choice: Json, part: Json) -> None:
    """Merge a choice or its next chunk. Tool calls arrive in pieces with their index."""
    choice["finish_reason"] = part.get("finish_reason") or choice.get("finish_reason")
    message = part.get("message") or part.get("delta") or {"content": part.get("text")}
    choice["content"] = choice.get("content", "") + (message.get("content") or "")
    if message.get("function_call"):
        raise RequestError("calls of functions are recorded only in the form of tool_calls")
    calls = choice.setdefault("calls", {})
    for number, call in enumerate(message.get("tool_calls") or []):
        known = calls.setdefault(
            call.get("index", number), {"id": call.get("id"), "name": "", "arguments": ""}
        )
        for name in ("name", "arguments"):
            known[name] += (call.get("function") or {}).get(name) or ""


def _ended(choice: Json) -> Json:
    message: Json = {"role": "assistant", "content": choice["content"] or None}
    if choice["calls"]:
        message["tool_calls"] = [_call(**call) for _, call in sorted(choice["calls"].items())]
    elif message["content"] is None:
        message["content"] = ""
    return {"message": message, "finish_reason": choice["finish_reason"]}


def _of_items(response: Json) -> Json:
    """Return a response's output as a choice."""
    if response.get("status") not in ("completed", "incomplete"):
        raise RequestError("the answer has no end")
    content, calls = "", {}
    for number, item in enumerate(response.get("output") or []):
        if item.get("type") == "message":
            content += "".join(part.get("text") or "" for part in item.get("content") or [])
        elif item.get("type") == "function_call":
            calls[number] = {"id": item["call_id"], "name": item["name"], "arguments": item["arguments"]}
    reason = "length" if response["status"] == "incomplete" else "tool_calls" if calls else "stop"
    return _ended({"content": content, "calls": calls, "finish_reason": reason})


def _call(id: str | None, name: str, arguments: str) -> Json:  # noqa: A002  (OpenAI's name)
    if not name:
        raise RequestError("only calls of functions are recorded")
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}
