"""Parsing of message contents and of the predicted output, with the names of what is left out.

Contents come as text or as parts. Agents keep the answers of several APIs in one history, so the parts of all
of them are read: OpenAI's chat and responses, vLLM's, and Anthropic's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agentspec.errors import RequestError
from agentspec.gateway.http.response_writer import RawHeader
from agentspec.wire import LEFT_OUT_HEADER, MAX_PREDICTION_CHARS

# types of parts, and the member that holds the text
TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
# reasoning, and calls of the server's own tools: the text that follows from them is in the history, too
LEFT_OUT_PARTS = frozenset(
    (
        "reasoning",
        "reasoning_text",
        "redacted_thinking",
        "server_tool_use",
        "summary_text",
        "thinking",
        "web_search_tool_result",
    )
)
MAX_NAMES = 16
OTHER = "other"
_KIND = re.compile(r"[A-Za-z0-9_.-]{1,40}")


@dataclass(slots=True)
class Content:
    """The parts of one content.

    Attributes:
        texts: text of each text part.
        calls: ``tool_use`` parts, in the form of chat's ``tool_calls``.
        results: ``tool_result`` parts, as messages of the role ``tool``.
    """

    texts: list[str] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    results: list[dict[str, Any]] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The texts, joined by newlines as in vLLM."""
        return "\n".join(self.texts)


def read_content(content: object, param: str, left_out: LeftOut) -> Content:
    """Return the parts of ``content``. ``None`` has none.

    Raises:
        RequestError: a part is neither text nor a call, for example an image. The error names ``param``.
    """
    if content is None or isinstance(content, str):
        return Content([content] if content else [])
    if not isinstance(content, list):
        raise RequestError(f"{param} must be a string or a list of text parts, not {content!r}", param=param)
    read = Content()
    for index, part in enumerate(content):
        _add(read, part, f"{param}[{index}]", left_out)
    return read


def read_text(content: object, param: str, left_out: LeftOut | None = None) -> str:
    """Return the text of ``content``. Raises RequestError for other parts, as :func:`read_content`."""
    read = read_content(content, param, left_out or LeftOut())
    if read.calls or read.results:
        raise RequestError(f"{param} must hold text, and has a call of a tool or its result", param=param)
    return read.text


def read_output(output: object, param: str, left_out: LeftOut) -> str:
    """Return the output of a tool as text. One that is no text and has no text parts is shown as JSON."""
    if output is None or isinstance(output, str) or _has_parts(output):
        return read_text(output, param, left_out)
    return json_text(output)


def json_text(value: object) -> str:
    """Return ``value`` as JSON, as it would stand in a call's arguments."""
    return json.dumps(value, ensure_ascii=False)


def _has_parts(output: object) -> bool:
    return isinstance(output, list) and all(map(_is_part, output))


def _is_part(value: object) -> bool:
    return isinstance(value, str) or (isinstance(value, dict) and "type" in value)


def _add(read: Content, part: object, param: str, left_out: LeftOut) -> None:
    if isinstance(part, str):  # vLLM takes them, too
        read.texts.append(part)
        return
    kind = part.get("type") if isinstance(part, dict) else None
    if isinstance(part, dict) and isinstance(kind, str):
        if kind in TEXT_PARTS and isinstance(text := part.get(TEXT_PARTS[kind]) or "", str):
            read.texts.append(text)
            return
        if kind in LEFT_OUT_PARTS:
            left_out.add("messages", kind)
            return
        if kind == "tool_use" and isinstance(name := part.get("name"), str):
            function = {"name": name, "arguments": json_text(part.get("input") or {})}
            read.calls.append({"id": part.get("id"), "type": "function", "function": function})
            return
        if kind == "tool_result":
            text = read_output(part.get("content"), f"{param}.content", left_out)
            read.results.append({"role": "tool", "tool_call_id": part.get("tool_use_id"), "content": text})
            return
    raise RequestError(f"{param} must be a text part, not of type {kind!r}", param=param)


def read_prediction(body: Mapping[str, Any]) -> str | None:
    """Return the predicted text, or None. Raises RequestError if it is malformed or too long."""
    prediction = body.get("prediction")
    if prediction is None:
        return None
    if not isinstance(prediction, dict):
        raise RequestError(
            f"prediction must be an object, not {prediction!r}", param="prediction", code="invalid_value"
        )
    if prediction.get("content") is None:
        raise RequestError("prediction.content is missing", param="prediction.content")
    text = read_text(prediction["content"], "prediction.content")
    if len(text) > MAX_PREDICTION_CHARS:
        raise RequestError(
            f"prediction.content has at most {MAX_PREDICTION_CHARS} characters, not {len(text)}",
            param="prediction.content",
            code="invalid_value",
        )
    return text


class LeftOut:
    """Kinds of parts, items and tools of one request that are left out, such as ``tools.mcp``, each once."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def add(self, field: str, kind: str) -> None:
        """Add a kind, which the client may have chosen: only its plain characters reach the header."""
        name = f"{field}.{kind if _KIND.fullmatch(kind) else OTHER}"
        if name not in self.names and len(self.names) < MAX_NAMES:
            self.names.append(name)

    def headers(self) -> list[RawHeader]:
        """Return the header of the response; nothing if nothing is left out."""
        return [(LEFT_OUT_HEADER.encode(), ", ".join(self.names).encode())] if self.names else []
