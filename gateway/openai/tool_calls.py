"""Calls of tools in what a model writes, in the form that Hermes and Qwen were trained on:

    <tool_call>
    {"name": "look", "arguments": {"a": 1}}
    </tool_call>

What is written otherwise stays text.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass, field
from typing import Any

from agentspec.generation import GenerationRequest

OPEN = "<tool_call>"
CLOSE = "</tool_call>"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call; ``arguments`` is JSON, as OpenAI has it."""

    name: str
    arguments: str
    call_id: str = field(default_factory=lambda: f"call_{uuid.uuid4().hex}")

    def chat_form(self) -> dict[str, Any]:
        """As a member of ``tool_calls`` in chat."""
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.call_id, "type": "function", "function": function}


Piece = str | ToolCall


class ToolCallReader:
    """Tells text and calls of one output apart while it comes in.

    White space before a call is a part of it. Without a call, the texts join to what was pushed.
    """

    def __init__(self) -> None:
        self._held = ""
        self._num_searched = 0  # characters held in which no call ends
        self.num_calls = 0

    def push(self, text: str) -> list[Piece]:
        """What is certain now: text outside of calls, and whole calls."""
        self._held += text
        pieces: list[Piece] = []
        while piece := self._next():
            pieces.append(piece)
        return pieces

    def flush(self) -> list[Piece]:
        """What is left at the end: a call that was not closed, or else text."""
        rest, self._held = self._held, ""
        _, opened, inside = rest.partition(OPEN)
        if opened and (call := _parsed(inside)) is not None:
            self.num_calls += 1
            return [call]
        return [rest] if rest and not (self.num_calls and rest.isspace()) else []

    def _next(self) -> Piece | None:
        """Cut the next piece off what is held; None if more must come first."""
        start = _opening(self._held)
        if text := self._cut(len(self._held[:start].rstrip())):
            return text
        while (end := self._held.find(CLOSE, max(start, self._num_searched))) >= 0:
            inside = self._held[start + len(OPEN) : end]
            call = _parsed(inside)
            if call is not None:
                self._cut(end + len(CLOSE))
                self.num_calls += 1
                return call
            if not _ends_in_string(inside):
                return self._cut(self._held.find(CLOSE, start) + len(CLOSE))
            self._num_searched = end + len(CLOSE)
        return None

    def _cut(self, num_chars: int) -> str:
        piece, self._held = self._held[:num_chars], self._held[num_chars:]
        if piece:
            self._num_searched = 0
        return piece


def may_call(request: GenerationRequest) -> bool:
    """True if calls are to be looked for in the answer."""
    sampling = request.sampling
    return bool(request.tools) and (sampling.json_schema is None or sampling.grammar is not None)


def _parsed(text: str) -> ToolCall | None:
    try:
        call = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return None
    arguments = call.get("arguments", {})
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return ToolCall(call["name"], arguments)


def _ends_in_string(text: str) -> bool:
    """True of JSON that was cut off inside a string: what stands there is said, and no end of a call."""
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        return error.msg.startswith("Unterminated string")
    except (ValueError, RecursionError):
        pass
    return False


def _opening(text: str) -> int:
    """Where a call begins, or may begin at the very end; else the length."""
    if (start := text.find(OPEN)) >= 0:
        return start
    starts = (len(text) - num for num in range(len(OPEN) - 1, 0, -1) if text.endswith(OPEN[:num]))
    return next(starts, len(text))
