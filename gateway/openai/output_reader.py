"""Reads one streamed output: text, reasoning and tool calls."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from agentspec.gateway.openai.call_reader import (
    CLOSE,
    OPEN,
    Arguments,
    CallBegun,
    CallEnded,
    CallEvent,
    CallReader,
    Reading,
    TextSource,
)
from agentspec.generation import THINK_CLOSE, THINK_OPEN, ThinkTags

NO_TAG = re.compile(r"[^<]*")
CLOSERS = re.compile(r"[\s}\]]*")  # superfluous characters of a model at the end of a call


@dataclass(frozen=True, slots=True)
class Text:
    """The next characters of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """The next characters of the model's reasoning."""

    text: str


Event = Text | Reasoning | CallEvent


class OutputReader:
    """A state machine that separates one output into text, reasoning and tool calls, as early as possible.

    The events, joined, do not depend on how the output was cut. Without calls and reasoning, the texts join
    to the output. White space before a call or reasoning belongs to it. Nothing in reasoning is a call.

    Args:
        reads_calls: tools may be called.
        think_tags: see :class:`agentspec.generation.GenerationDelta`. If they are unknown, a ``<think>`` that
            begins the output, and all up to ``</think>``, is text without calls.
        max_calls: further calls are left out; None = no limit.
    """

    def __init__(
        self, *, reads_calls: bool, think_tags: ThinkTags = "unknown", max_calls: int | None = None
    ) -> None:
        self._reads_calls = reads_calls
        self._think_tags = think_tags
        self._max_calls = max_calls
        self._num_calls = 0
        self._has_said = False
        self._space = ""  # read, but perhaps part of a call
        self._source = TextSource()
        self._events: list[Event] = []
        self._reading = self._output()

    def push(self, text: str) -> list[Event]:
        """Add text and return the events that are certain now."""
        self._source.add(text)
        next(self._reading, None)
        return self._taken()

    def end(self) -> list[Event]:
        """Return the last events, at the end of the output."""
        self._source.is_over = True
        return self.push("")

    def _taken(self) -> list[Event]:
        """Return the new events, neighbours of a kind joined."""
        events, self._events = self._events, []
        return joined(events)

    def _output(self) -> Reading[None]:
        if self._think_tags == "open":
            yield from self._skip_repeated_tag()
            yield from self._reasoning()
        while (yield from self._next()):
            pass
        if not self._num_calls:
            self._emit(Text(self._space))

    def _next(self) -> Reading[bool]:
        """Read text up to a tag, and what the tag begins. False at the end."""
        self._say(self._source.take(NO_TAG))
        char = yield from self._source.ahead()
        if char == "<":
            tag = yield from self._source.tag_ahead(*self._tags())
            self._source.position += len(tag or char)
            if tag == OPEN:
                yield from self._call()
            elif tag == THINK_OPEN:
                yield from self._thought()
            else:
                self._say(char)
        return bool(char)

    def _tags(self) -> Sequence[str]:
        thinks = self._think_tags != "unknown" or not (self._has_said or self._num_calls)
        return (*((OPEN,) if self._reads_calls else ()), *((THINK_OPEN,) if thinks else ()))

    def _say(self, text: str) -> None:
        """Emit text without the white space at its end, which belongs to a call that follows."""
        text = self._space + text
        said = text.rstrip()
        self._space = text[len(said) :]
        if said:
            self._has_said = True
            self._emit(Text(said))

    def _call(self) -> Reading[None]:
        start = self._source.keep()
        if (yield from CallReader(self._source, self._emit_call).read()):
            self._space = ""
            yield from self._skip_close()
        else:
            self._source.release(start)
            self._say(OPEN)

    def _emit_call(self, event: CallEvent) -> None:
        self._num_calls += isinstance(event, CallBegun)
        if self._max_calls is None or self._num_calls <= self._max_calls:
            self._emit(event)

    def _skip_close(self) -> Reading[None]:
        """Skip the closing tag, and brackets before it. Without it, nothing is skipped."""
        start = self._source.keep()
        self._source.take(CLOSERS)
        while CLOSERS.fullmatch(char := (yield from self._source.ahead())) and char:
            self._source.take(CLOSERS)
        tag = yield from self._source.tag_ahead(CLOSE)
        self._source.release(self._source.position + len(tag) if tag else start)

    def _thought(self) -> Reading[None]:
        """Read reasoning behind its tag."""
        if self._think_tags == "unknown":
            self._say(THINK_OPEN)
        else:
            self._space = ""
        yield from self._reasoning()

    def _reasoning(self) -> Reading[None]:
        """Read up to the closing tag, or the end."""
        is_known = self._think_tags != "unknown"
        while True:
            self._think(self._source.take(NO_TAG))
            char = yield from self._source.ahead()
            if char == "":
                return
            if (yield from self._source.tag_ahead(THINK_CLOSE)):
                break
            self._source.position += 1
            self._think(char)
        self._source.position += len(THINK_CLOSE)
        if not is_known:
            self._say(THINK_CLOSE)

    def _think(self, text: str) -> None:
        if self._think_tags == "unknown":
            self._say(text)
        else:
            self._emit(Reasoning(text))

    def _skip_repeated_tag(self) -> Reading[None]:
        """Skip the tag that the prompt has opened already, if the model opens it again."""
        start = self._source.keep()
        yield from self._source.past_space()
        tag = yield from self._source.tag_ahead(THINK_OPEN)
        self._source.release(self._source.position + len(tag) if tag else start)

    def _emit(self, event: Event) -> None:
        self._events.append(event)


def joined(events: Sequence[Event]) -> list[Event]:
    """Return the events with neighbours of a kind as one, and without empty ones."""
    joined: list[Event] = []
    for kind, group in groupby(events, type):
        if issubclass(kind, CallBegun | CallEnded):
            joined.extend(group)
            continue
        texts = (event.text for event in group if not isinstance(event, CallBegun | CallEnded))
        if (text := "".join(texts)) and issubclass(kind, Text | Reasoning | Arguments):
            joined.append(kind(text))
    return joined
