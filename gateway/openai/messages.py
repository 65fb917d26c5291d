"""Chat messages as a model's template takes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentspec.errors import RequestError
from agentspec.gateway.openai.text_content import read_text


def read_messages(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """With text content, and no role that templates do not know. Raises RequestError."""
    return [_message(f"messages[{index}]", message) for index, message in enumerate(messages)]


def template_role(role: object, param: str) -> str:
    """The role by the name that templates know. Raises RequestError if it is no name."""
    if not isinstance(role, str) or not role:
        raise RequestError(f"{param} must be a string, not {role!r}", param=param)
    return "system" if role == "developer" else role


def _message(param: str, message: dict[str, Any]) -> dict[str, Any]:
    role = template_role(message.get("role"), f"{param}.role")
    has_calls = _has_tool_calls(message.get("tool_calls"), f"{param}.tool_calls")
    content = message.get("content")
    if content is None and has_calls:
        content = ""  # not null: most templates add it to a text
    return {**message, "role": role, "content": read_text(content, f"{param}.content")}


def _has_tool_calls(calls: object, param: str) -> bool:
    """True if there are any. Raises RequestError if they are no list of objects."""
    if calls is not None and not (isinstance(calls, list) and all(isinstance(call, dict) for call in calls)):
        raise RequestError(f"{param} must be a list of objects, not {calls!r}", param=param)
    return bool(calls)
