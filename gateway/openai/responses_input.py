"""Conversion of ``input`` of the responses API to chat messages.

A call of a tool is an item in the responses API, and a part of the assistant's message in chat. Items that no
template accepts are left out, such as reasoning. Items that the conversation depends on are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from agentspec.errors import RequestError
from agentspec.gateway.openai.messages import (
    LeftOut,
    Message,
    argument_text,
    json_text,
    read_output,
    read_text,
    template_role,
)

Item = Mapping[str, Any]

# calls of a client's tools, and how the model would have written their arguments
CALLS: Mapping[str, Callable[[Item], str]] = {
    "function_call": lambda item: argument_text(item.get("arguments")),
    "custom_tool_call": lambda item: json_text({"input": item.get("input")}),
    "mcp_call": lambda item: argument_text(item.get("arguments")),
    "local_shell_call": lambda item: json_text(item.get("action") or {}),
    "shell_call": lambda item: json_text(item.get("action") or {}),
    "apply_patch_call": lambda item: json_text(item.get("operation") or {}),
}
OUTPUTS = frozenset(f"{kind}_output" for kind in CALLS if kind != "mcp_call")
# what a server found out by itself, and its tools: the answers that follow are in the input, too
LEFT_OUT_ITEMS = frozenset(
    (
        "additional_tools",
        "code_interpreter_call",
        "computer_call",
        "configuration_update",
        "file_search_call",
        "ghost_snapshot",  # Codex's own
        "mcp_approval_request",
        "mcp_approval_response",
        "mcp_list_tools",
        "program",
        "program_output",
        "reasoning",
        "tool_search_call",
        "tool_search_output",
        "web_search_call",
    )
)


def read_input(given: object, instructions: str | None, left_out: LeftOut | None = None) -> list[Message]:
    """Return the messages, ``instructions`` first. Raises RequestError, which names the item."""
    messages = [{"role": "system", "content": instructions}] if instructions else []
    if isinstance(given, str):
        return [*messages, {"role": "user", "content": given}]
    if not isinstance(given, list) or not given:
        raise RequestError(
            f"input must be a string or a list of items, and not empty: {given!r}", param="input"
        )
    for index, item in enumerate(given):
        _add(messages, item, f"input[{index}]", left_out or LeftOut())
    return _with_one_system_message(messages)


def _with_one_system_message(messages: list[Message]) -> list[Message]:
    """Join the system messages at the beginning: many templates know one only."""
    num = next((index for index, one in enumerate(messages) if one["role"] != "system"), len(messages))
    if num < 2:
        return messages
    text = "\n\n".join(message["content"] for message in messages[:num])
    return [{"role": "system", "content": text}, *messages[num:]]


def _add(messages: list[Message], item: object, param: str, left_out: LeftOut) -> None:
    if not isinstance(item, dict):
        raise RequestError(f"{param} must be an object, not {item!r}", param=param)
    kind = item.get("type") or "message"
    if kind == "message":
        role = template_role(item.get("role"), f"{param}.role")
        text = read_text(item.get("content"), f"{param}.content", left_out)
        messages.append({"role": role, "content": text})
    elif kind in CALLS:
        _add_call(messages, item, kind, param)
        if kind == "mcp_call":
            _add_output(messages, item, str(item.get("id")), param, left_out)
    elif kind in OUTPUTS:
        _add_output(messages, item, _call_id(item, param), param, left_out)
    elif kind in LEFT_OUT_ITEMS:
        left_out.add("input", kind)
    else:
        raise RequestError(
            f"{param}.type is not supported: {kind!r}. Send the conversation as messages, function_call and "
            "function_call_output items",
            param=f"{param}.type",
            code="unsupported_value",
        )


def _add_call(messages: list[Message], item: Item, kind: str, param: str) -> None:
    """Add the call to the preceding assistant's message, or to a new one without text."""
    name = item.get("name") or kind.removesuffix("_call")
    if kind in ("function_call", "custom_tool_call", "mcp_call"):
        name = _name(item, "name", param)
    function = {"name": name, "arguments": CALLS[kind](item)}
    call_id = str(item.get("id")) if kind == "mcp_call" else _call_id(item, param)
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": ""})
    messages[-1].setdefault("tool_calls", []).append(
        {"id": call_id, "type": "function", "function": function}
    )


def _add_output(messages: list[Message], item: Item, call_id: str, param: str, left_out: LeftOut) -> None:
    output = item.get("output") if item.get("output") is not None else item.get("error")
    text = read_output(output, f"{param}.output", left_out)
    messages.append({"role": "tool", "tool_call_id": call_id, "content": text})


def _call_id(item: Item, param: str) -> str:
    """Return the id of a call. Outputs of a local shell have it as their own id."""
    if item.get("type") == "local_shell_call_output" and not item.get("call_id"):
        return _name(item, "id", param)
    return _name(item, "call_id", param)


def _name(item: Item, name: str, param: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise RequestError(f"{param}.{name} must be a string, not {value!r}", param=f"{param}.{name}")
    return value
