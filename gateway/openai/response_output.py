"""Objects of the responses API: a response, and the items of its output."""

from __future__ import annotations

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentspec.gateway.openai.answer_forms import describe_logprobs, new_call_id
from agentspec.gateway.openai.call_reader import Arguments, CallBegun, CallEnded
from agentspec.gateway.openai.output_reader import Event as ReadEvent
from agentspec.gateway.openai.output_reader import Reasoning, Text
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


class OpenItem(ABC):
    """An item of the output in progress: it gets text until it is closed."""

    id_prefix: str

    def __init__(self, output_index: int) -> None:
        self._item_id = f"{self.id_prefix}_{uuid.uuid4().hex}"
        self._output_index = output_index
        self._texts: list[str] = []

    @property
    def text(self) -> str:
        """All text so far."""
        return "".join(self._texts)

    @abstractmethod
    def opening(self) -> list[Event]:
        """Return the events that precede the text."""

    @abstractmethod
    def add(self, text: str, logprobs: Sequence[TokenLogprob]) -> list[Event]:
        """Add text and return its events."""

    @abstractmethod
    def closing(self, status: str) -> tuple[Item, list[Event]]:
        """Return the complete item and the events of its end."""

    def _event(self, name: str, /, **members: Any) -> Event:
        return {"type": f"response.{name}", "output_index": self._output_index, **members}

    def _own_event(self, name: str, /, **members: Any) -> Event:
        return self._event(name, item_id=self._item_id, **members)


class OpenMessage(OpenItem):
    """A message in progress: one item with one text part."""

    id_prefix = "msg"

    def __init__(self, output_index: int) -> None:
        super().__init__(output_index)
        self._logprobs: list[dict[str, Any]] = []

    def opening(self) -> list[Event]:
        """Return the events that precede the text."""
        return [
            self._event("output_item.added", item=self._item("in_progress", [])),
            self._own_event("content_part.added", content_index=0, part=_text_part("", [])),
        ]

    def add(self, text: str, logprobs: Sequence[TokenLogprob]) -> list[Event]:
        """Add text and return its events."""
        self._texts.append(text)
        described = describe_logprobs(logprobs)
        self._logprobs.extend(described)
        delta = self._own_event("output_text.delta", content_index=0, delta=text, logprobs=described)
        return [delta] if text else []

    def closing(self, status: str) -> tuple[Item, list[Event]]:
        """Return the complete item and the events of its end."""
        part = _text_part(self.text, self._logprobs)
        item = self._item(status, [part])
        done = {"text": part["text"], "logprobs": part["logprobs"]}
        return item, [
            self._own_event("output_text.done", content_index=0, **done),
            self._own_event("content_part.done", content_index=0, part=part),
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


class OpenReasoning(OpenItem):
    """Reasoning in progress: one item with one text part, and no summary."""

    id_prefix = "rs"

    def opening(self) -> list[Event]:
        """Return the events that precede the text."""
        return [
            self._event("output_item.added", item=self._item("in_progress", [])),
            self._own_event("content_part.added", content_index=0, part=_reasoning_part("")),
        ]

    def add(self, text: str, logprobs: Sequence[TokenLogprob]) -> list[Event]:
        """Add text and return its event. A reasoning item has no place for log probabilities."""
        self._texts.append(text)
        return [self._own_event("reasoning_text.delta", content_index=0, delta=text)]

    def closing(self, status: str) -> tuple[Item, list[Event]]:
        """Return the complete item and the events of its end."""
        part = _reasoning_part(self.text)
        item = self._item(status, [part])
        return item, [
            self._own_event("reasoning_text.done", content_index=0, text=part["text"]),
            self._own_event("content_part.done", content_index=0, part=part),
            self._event("output_item.done", item=item),
        ]

    def _item(self, status: str, content: list[dict[str, Any]]) -> Item:
        return {
            "id": self._item_id,
            "type": "reasoning",
            "status": status,
            "summary": [],
            "content": content,
        }


class OpenCall(OpenItem):
    """A call of a function in progress. Its text are the arguments."""

    id_prefix = "fc"

    def __init__(self, output_index: int, name: str) -> None:
        super().__init__(output_index)
        self._call_id = new_call_id()
        self._name = name

    def opening(self) -> list[Event]:
        """Return the event that precedes the arguments."""
        return [self._event("output_item.added", item=self._item("in_progress"))]

    def add(self, text: str, logprobs: Sequence[TokenLogprob]) -> list[Event]:
        """Add to the arguments and return the event. A call has no place for log probabilities."""
        self._texts.append(text)
        return [self._own_event("function_call_arguments.delta", delta=text)]

    def closing(self, status: str) -> tuple[Item, list[Event]]:
        """Return the complete item and the events of its end."""
        item = self._item(status)
        return item, [
            self._own_event("function_call_arguments.done", name=self._name, arguments=self.text),
            self._event("output_item.done", item=item),
        ]

    def _item(self, status: str) -> Item:
        return {
            "id": self._item_id,
            "type": "function_call",
            "status": status,
            "call_id": self._call_id,
            "name": self._name,
            "arguments": self.text,
        }


class ResponseOutput:
    """The output of one response, built from what is read of it, in order.

    Attributes:
        items: complete items.
    """

    def __init__(self) -> None:
        self.items: list[Item] = []
        self._open: OpenItem | None = None

    def add(self, read: ReadEvent, logprobs: Sequence[TokenLogprob] = ()) -> list[Event]:
        """Add to the open item, or close it and open another. ``logprobs``: of a message's tokens."""
        match read:
            case Text(text):
                return self._add(OpenMessage, text, logprobs)
            case Reasoning(text):
                return self._add(OpenReasoning, text, logprobs)
            case CallBegun(name):
                return self._begin(OpenCall(self._next_index, name))
            case Arguments(text):
                return self._open.add(text, logprobs) if self._open else []
            case CallEnded(is_complete):
                return self._close("completed" if is_complete else "incomplete")

    def end(self, status: str, logprobs: Sequence[TokenLogprob] = ()) -> list[Event]:
        """End the output. An empty output becomes a message without text.

        ``logprobs`` belong to tokens without text at the end.
        """
        events = []
        if isinstance(self._open, OpenMessage) or not (self._open or self.items):
            events = self._add(OpenMessage, "", logprobs)
        return events + self._close(status)

    @property
    def _next_index(self) -> int:
        return len(self.items) + (self._open is not None)

    def _add(
        self, kind: type[OpenMessage | OpenReasoning], text: str, logprobs: Sequence[TokenLogprob]
    ) -> list[Event]:
        events = [] if isinstance(self._open, kind) else self._begin(kind(self._next_index))
        assert self._open is not None
        return events + self._open.add(text, logprobs)

    def _begin(self, item: OpenItem) -> list[Event]:
        events = self._close("completed")
        self._open = item
        return events + item.opening()

    def _close(self, status: str) -> list[Event]:
        if self._open is None:
            return []
        item, events = self._open.closing(status)
        self.items.append(item)
        self._open = None
        return events


def _text_part(text: str, logprobs: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


def _reasoning_part(text: str) -> dict[str, Any]:
    return {"type": "reasoning_text", "text": text}
