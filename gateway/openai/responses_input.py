"""Conversion of ``input`` and ``tools`` of the responses API to chat messages and tools.

A function call is an item in the responses API, and a part of the assistant's message in chat. Reasoning
items are dropped, since no template accepts them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentspec.errors import RequestError
from agentspec.gateway.openai.content import RESPONSES_PARTS, read_text, template_role

Message = dict[str, Any]


def read_input(given: object, instructions: str | None) -> list[Message]:
    """Return the messages, ``instructions`` first. Raises RequestError, which names the item."""
    messages = [{"role": "system", "content": instructions}] if instructions else []
    if isinstance(given, str):
        return [*messages, {"role": "user", "content": given}]
    if not isinstance(given, list) or not given:
        raise RequestError(
            f"input must be a string or a list of items, and not empty: {given!r}", param="input"
        )
    for index, item in enumerate(given):
        _add(messages, item, f"input[{index}]")
    return messages


def read_tools(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return functions in the format of chat. Raises RequestError for other kinds of tools."""
    return [_function(tool, f"tools[{index}]") for index, tool in enumerate(tools)]


def _add(messages: list[Message], item: object, param: str) -> None:
    if not isinstance(item, dict):
        raise RequestError(f"{param} must be an object, not {item!r}", param=param)
    kind = item.get("type") or "message"
    if kind == "message":
        role = template_role(item.get("role"), f"{param}.role")
        text = read_text(item.get("content"), f"{param}.content", RESPONSES_PARTS)
        messages.append({"role": role, "content": text})
    elif kind == "function_call":
        _add_call(messages, item, param)
    elif kind == "function_call_output":
        text = read_text(item.get("output"), f"{param}.output", RESPONSES_PARTS)
        messages.append({"role": "tool", "tool_call_id": _name(item, "call_id", param), "content": text})
    elif kind != "reasoning":
        raise RequestError(
            f"{param}.type must be 'message', 'function_call', 'function_call_output' or 'reasoning' here,"
            f" not {kind!r}",
            param=f"{param}.type",
            code="unsupported_value",
        )


def _add_call(messages: list[Message], item: Mapping[str, Any], param: str) -> None:
    """Add the call to the preceding assistant's message, or to a new one without text."""
    call = {
        "id": _name(item, "call_id", param),
        "type": "function",
        "function": {"name": _name(item, "name", param), "arguments": _name(item, "arguments", param)},
    }
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": ""})
    messages[-1].setdefault("tool_calls", []).append(call)


def _function(tool: Mapping[str, Any], param: str) -> dict[str, Any]:
    if tool.get("type") != "function":
        raise RequestError(
            f"{param}.type must be 'function' here, not {tool.get('type')!r}",
            param=f"{param}.type",
            code="unsupported_value",
        )
    _name(tool, "name", param)
    described = {name: value for name, value in tool.items() if name != "type" and value is not None}
    return {"type": "function", "function": described}


def _name(item: Mapping[str, Any], name: str, param: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise RequestError(f"{param}.{name} must be a string, not {value!r}", param=f"{param}.{name}")
    return value
