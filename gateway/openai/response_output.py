"""Objects of the responses API: a response, and the items of its output."""

from __future__ import annotations

import time
import uuid
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


MESSAGE, REASONING, CALL = "message", "reasoning", "function_call"
# prefix of the item's id, and name of its text in events
KINDS = {
    MESSAGE: ("msg", "output_text"),
    REASONING: ("rs", "reasoning_text"),
    CALL: ("fc", "function_call_arguments"),
}


class OpenItem:
    """An item of the output in progress: it gets text until it is closed. A call's text are its arguments.

    A message and reasoning have one content part. Reasoning has no summary. Only a message has a place for
    log probabilities.
    """

    def __init__(self, kind: str, output_index: int, name: str = "") -> None:
        prefix, self._text_name = KINDS[kind]
        self.kind = kind
        self._head = {"id": f"{prefix}_{uuid.uuid4().hex}", "type": kind}
        self._output_index = output_index
        self._texts: list[str] = []
        self._logprobs: list[dict[str, Any]] = []
        self._function = {"call_id": new_call_id(), "name": name} if kind == CALL else {}

    def opening(self) -> list[Event]:
        """Return the events that precede the text."""
        events = [self._event("output_item.added", item=self._item("in_progress", has_part=False))]
        return (
            events if self.kind == CALL else [*events, self._part_event("content_part.added", self._part())]
        )

    def add(self, text: str, logprobs: Sequence[TokenLogprob]) -> list[Event]:
        """Add text and return its events."""
        self._texts.append(text)
        if self.kind != MESSAGE:
            return [self._text_event("delta", delta=text)]
        described = describe_logprobs(logprobs)
        self._logprobs.extend(described)
        return [self._text_event("delta", delta=text, logprobs=described)] if text else []

    def closing(self, status: str) -> tuple[Item, list[Event]]:
        """Return the complete item and the events of its end."""
        item = self._item(status)
        done = self._event("output_item.done", item=item)
        if self.kind == CALL:
            return item, [self._text_event("done", name=item["name"], arguments=item["arguments"]), done]
        part = self._part()
        said = {name: part[name] for name in ("text", "logprobs") if name in part}
        return item, [self._text_event("done", **said), self._part_event("content_part.done", part), done]

    def _item(self, status: str, *, has_part: bool = True) -> Item:
        head = {**self._head, "status": status}
        if self.kind == CALL:
            return {**head, **self._function, "arguments": "".join(self._texts)}
        own: Item = {"role": "assistant"} if self.kind == MESSAGE else {"summary": []}
        return {**head, **own, "content": [self._part()] if has_part else []}

    def _part(self) -> dict[str, Any]:
        part = {"type": self._text_name, "text": "".join(self._texts)}
        return {**part, "annotations": [], "logprobs": self._logprobs} if self.kind == MESSAGE else part

    def _event(self, name: str, /, **members: Any) -> Event:
        return {"type": f"response.{name}", "output_index": self._output_index, **members}

    def _part_event(self, name: str, part: dict[str, Any]) -> Event:
        return self._event(name, item_id=self._head["id"], content_index=0, part=part)

    def _text_event(self, phase: str, **members: Any) -> Event:
        index = {} if self.kind == CALL else {"content_index": 0}
        return self._event(f"{self._text_name}.{phase}", item_id=self._head["id"], **index, **members)


class ResponseOutput:
    """The output of one response, built from an ``OutputReader``'s events, in order.

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
                return self._add(MESSAGE, text, logprobs)
            case Reasoning(text):
                return self._add(REASONING, text, logprobs)
            case CallBegun(name):
                return self._begin(CALL, name)
            case Arguments(text):
                return self._open.add(text, logprobs) if self._open else []
            case CallEnded(is_complete):
                return self._close("completed" if is_complete else "incomplete")

    def end(self, status: str, logprobs: Sequence[TokenLogprob] = ()) -> list[Event]:
        """End the output. An empty output becomes a message without text.

        ``logprobs`` belong to tokens without text at the end.
        """
        events = []
        if self._is_open(MESSAGE) or not (self._open or self.items):
            events = self._add(MESSAGE, "", logprobs)
        return events + self._close(status)

    def _is_open(self, kind: str) -> bool:
        return self._open is not None and self._open.kind == kind

    def _add(self, kind: str, text: str, logprobs: Sequence[TokenLogprob]) -> list[Event]:
        events = [] if self._is_open(kind) else self._begin(kind)
        assert self._open is not None
        return events + self._open.add(text, logprobs)

    def _begin(self, kind: str, name: str = "") -> list[Event]:
        events = self._close("completed")
        self._open = OpenItem(kind, len(self.items), name)
        return events + self._open.opening()

    def _close(self, status: str) -> list[Event]:
        if self._open is None:
            return []
        item, events = self._open.closing(status)
        self.items.append(item)
        self._open = None
        return events
