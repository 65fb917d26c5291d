"""Parsing of message contents, roles and the predicted output."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from agentspec.errors import RequestError
from agentspec.wire import MAX_PREDICTION_CHARS

CHAT_PARTS = ("text",)
RESPONSES_PARTS = ("input_text", "output_text", "text")


def read_text(content: object, param: str, kinds: Collection[str] = CHAT_PARTS) -> str:
    """Return the text of ``content``, its parts joined by newlines as in vLLM.

    ``kinds`` are the accepted types of text parts. Raises RequestError, which names ``param``, for others.
    """
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise RequestError(f"{param} must be a string or a list of text parts, not {content!r}", param=param)
    texts = []
    for index, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        text = part.get("text") if kind in kinds else None
        if not isinstance(text, str):
            raise RequestError(
                f"{param}[{index}] must be a text part, not of type {kind!r}", param=f"{param}[{index}]"
            )
        texts.append(text)
    return "\n".join(texts)


def read_messages(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages with contents as text, and roles that templates support. Raises RequestError."""
    return [_message(f"messages[{index}]", message) for index, message in enumerate(messages)]


def template_role(role: object, param: str) -> str:
    """Return the role under the name that templates support. Raises RequestError if it is not a name."""
    if not isinstance(role, str) or not role:
        raise RequestError(f"{param} must be a string, not {role!r}", param=param)
    return "system" if role == "developer" else role


def _message(param: str, message: dict[str, Any]) -> dict[str, Any]:
    role = template_role(message.get("role"), f"{param}.role")
    has_calls = _has_tool_calls(message.get("tool_calls"), f"{param}.tool_calls")
    content = message.get("content")
    if content is None and has_calls:
        content = ""  # not null: most templates concatenate it
    return {**message, "role": role, "content": read_text(content, f"{param}.content")}


def _has_tool_calls(calls: object, param: str) -> bool:
    """True if there are tool calls. Raises RequestError if ``calls`` is not a list of objects."""
    if calls is not None and not (isinstance(calls, list) and all(isinstance(call, dict) for call in calls)):
        raise RequestError(f"{param} must be a list of objects, not {calls!r}", param=param)
    return bool(calls)


def read_prediction(body: Mapping[str, Any]) -> str | None:
    """Return the predicted text, or None. Raises RequestError if it is malformed or too long."""
    prediction = body.get("prediction")
    if prediction is None:
        return None
    if not isinstance(prediction, dict):
        raise RequestError(
            f"prediction must be an object, not {prediction!r}", param="prediction", code="invalid_value"
        )
    text = read_text(prediction.get("content"), "prediction.content")
    if len(text) > MAX_PREDICTION_CHARS:
        raise RequestError(
            f"prediction.content has at most {MAX_PREDICTION_CHARS} characters, not {len(text)}",
            param="prediction.content",
            code="invalid_value",
        )
    return text
