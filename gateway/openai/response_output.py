"""Objects of the responses API: a response, and the items of its output."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentspec.gateway.openai.answer_forms import describe_logprobs
from agentspec.gateway.openai.tools import Piece, ToolCall
from agentspec.generation import TokenLogprob

# request fields that the answer repeats, with their defaults
ECHOED = {
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "parallel_tool_calls": True,
    "prompt_cache_key": None,
    "reasoning": {"effort": None, "summary": None},
    "safety_identifier": None,
    "temperature": 1.0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": (),
    "top_logprobs": 0,
    "top_p": 1.0,
    "user": None,
    "metadata": {},
}
# fields with fixed values: storage, background runs and truncation are not supported
FIXED = {
    "background": False,
    "previous_response_id": None,
    "service_tier": "default",
    "store": False,
    "truncation": "disabled",
}


@dataclass(slots=True)
class ResponseObject:
    """The response object in its successive states."""

    response_id: str
    model: str
    given: Mapping[str, Any]
    created: int = field(default_factory=lambda: int(time.time()))

    def in_progress(self) -> dict[str, Any]:
        """Return the response in progress."""
        return self._state("in_progress", [], None)

    def ended(
        self, output: Sequence[dict[str, Any]], usage: Mapping[str, Any], *, is_complete: bool
    ) -> dict[str, Any]:
        """Return the ended response. ``is_complete``: True unless ``max_output_tokens`` ended it."""
        if is_complete:
            return self._state("completed", output, usage, completed_at=int(time.time()))
        return self._state("incomplete", output, usage, incomplete_details={"reason": "max_output_tokens"})

    def failed(self, output: Sequence[dict[str, Any]], message: str) -> dict[str, Any]:
        """Return the response that failed in the engine."""
        return self._state("failed", output, None, error={"code": "server_error", "message": message})

    def _state(
        self, status: str, output: Sequence[dict[str, Any]], usage: Mapping[str, Any] | None, **more: Any
    ) -> dict[str, Any]:
        return {
            "id": self.response_id,
            "object": "response",
            "created_at": self.created,
            "completed_at": None,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "model": self.model,
            "output": output,
            **self._echo(),
            **FIXED,
            "usage": usage,
            **more,
        }

    def _echo(self) -> dict[str, Any]:
        said = {name: self.given.get(name) for name in ECHOED}
        return {name: default if said[name] is None else said[name] for name, default in ECHOED.items()}


Event = dict[str, Any]
Item = dict[str, Any]


class OpenMessage:
    """A message in progress: one item with one text part."""

    def __init__(self, output_index: int) -> None:
        self._item_id = f"msg_{uuid.uuid4().hex}"
        self._output_index = output_index
        self._texts: list[str] = []
        self._logprobs: list[dict[str, Any]] = []

    def opening(self) -> list[Event]:
        """Return the events that precede the text."""
        return [
            self._event("output_item.added", item=self._item("in_progress", [])),
            self._text_event("content_part.added", part=_text_part("", [])),
        ]

    def add(self, text: str, logprobs: Sequence[TokenLogprob]) -> list[Event]:
        """Add text and return its events."""
        self._texts.append(text)
        described = describe_logprobs(logprobs)
        self._logprobs.extend(described)
        return [self._text_event("output_text.delta", delta=text, logprobs=described)] if text else []

    def closing(self, status: str) -> tuple[Item, list[Event]]:
        """Return the complete item and the events of its end."""
        part = _text_part("".join(self._texts), self._logprobs)
        item = self._item(status, [part])
        return item, [
            self._text_event("output_text.done", text=part["text"], logprobs=part["logprobs"]),
            self._text_event("content_part.done", part=part),
            self._event("output_item.done", item=item),
        ]

    def _item(self, status: str, content: list[dict[str, Any]]) -> Item:
        return {
            "id": self._item_id,
            "type": "message",
            "status": status,
            "role": "assistant",
            "content": content,
        }

    def _event(self, name: str, **members: Any) -> Event:
        return {"type": f"response.{name}", "output_index": self._output_index, **members}

    def _text_event(self, name: str, **members: Any) -> Event:
        return self._event(name, item_id=self._item_id, content_index=0, **members)


class ResponseOutput:
    """The output of one response, built from its pieces in order.

    Attributes:
        items: complete items.
    """

    def __init__(self) -> None:
        self.items: list[Item] = []
        self._message: OpenMessage | None = None

    def add(self, piece: Piece, logprobs: Sequence[TokenLogprob] = ()) -> list[Event]:
        """Add text to the open message, or close it and add a call. ``logprobs``: of the text's tokens."""
        if isinstance(piece, ToolCall):
            return [*self._close("completed"), *self._call(piece)]
        events = []
        if self._message is None:
            self._message = OpenMessage(len(self.items))
            events = self._message.opening()
        return events + self._message.add(piece, logprobs)

    def end(self, status: str, logprobs: Sequence[TokenLogprob] = ()) -> list[Event]:
        """End the output. An empty output becomes a message without text.

        ``logprobs`` belong to tokens without text at the end.
        """
        events = self.add("", logprobs) if self._message or not self.items else []
        return events + self._close(status)

    def _close(self, status: str) -> list[Event]:
        if self._message is None:
            return []
        item, events = self._message.closing(status)
        self.items.append(item)
        self._message = None
        return events

    def _call(self, call: ToolCall) -> list[Event]:
        item = {
            "id": f"fc_{uuid.uuid4().hex}",
            "type": "function_call",
            "status": "completed",
            "call_id": call.call_id,
            "name": call.name,
            "arguments": call.arguments,
        }
        place = {"item_id": item["id"], "output_index": len(self.items)}
        added = {**item, "status": "in_progress", "arguments": ""}
        arguments = "response.function_call_arguments"
        self.items.append(item)
        return [
            {"type": "response.output_item.added", "output_index": place["output_index"], "item": added},
            {"type": f"{arguments}.delta", **place, "delta": call.arguments},
            {"type": f"{arguments}.done", **place, "name": call.name, "arguments": call.arguments},
            {"type": "response.output_item.done", "output_index": place["output_index"], "item": item},
        ]


def _text_part(text: str, logprobs: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}
