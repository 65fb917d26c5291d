"""The output of a response while it comes in: its items, and the events that tell of them."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from agentspec.gateway.openai.answer_forms import describe_logprobs
from agentspec.gateway.openai.tool_calls import Piece, ToolCall
from agentspec.generation import TokenLogprob

Event = dict[str, Any]
Item = dict[str, Any]


class OpenMessage:
    """The message that is written at present: one item with one part of text."""

    def __init__(self, output_index: int) -> None:
        self._item_id = f"msg_{uuid.uuid4().hex}"
        self._output_index = output_index
        self._texts: list[str] = []
        self._logprobs: list[dict[str, Any]] = []

    def opening(self) -> list[Event]:
        """Before its first text."""
        return [
            self._event("output_item.added", item=self._item("in_progress", [])),
            self._text_event("content_part.added", part=_text_part("", [])),
        ]

    def add(self, text: str, logprobs: Sequence[TokenLogprob]) -> list[Event]:
        """Further text."""
        self._texts.append(text)
        described = describe_logprobs(logprobs)
        self._logprobs.extend(described)
        return [self._text_event("output_text.delta", delta=text, logprobs=described)] if text else []

    def closing(self, status: str) -> tuple[Item, list[Event]]:
        """The whole item, and what tells of its end."""
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
    """Takes the pieces of one output in order.

    Attributes:
        items: those that are whole.
    """

    def __init__(self) -> None:
        self.items: list[Item] = []
        self._message: OpenMessage | None = None

    def add(self, piece: Piece, logprobs: Sequence[TokenLogprob] = ()) -> list[Event]:
        """Text goes on with the open message, a call ends it. ``logprobs``: those of a text's tokens."""
        if isinstance(piece, ToolCall):
            return [*self._close("completed"), *self._call(piece)]
        events = []
        if self._message is None:
            self._message = OpenMessage(len(self.items))
            events = self._message.opening()
        return events + self._message.add(piece, logprobs)

    def end(self, status: str, logprobs: Sequence[TokenLogprob] = ()) -> list[Event]:
        """Nothing follows. An output without anything is a message without text.

        ``logprobs``: those of tokens that came after the last text and have none themselves.
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
