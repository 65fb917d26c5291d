"""Reading of one tool call in the form of Hermes and Qwen: a JSON object with ``name`` and ``arguments``.

The arguments are returned as the model wrote them, character by character: they are never parsed, so raw line
breaks, unknown escapes, halves of surrogate pairs and ``1e999`` are no errors here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TypeVar

Result = TypeVar("Result")
Reading = Generator[None, None, Result]  # yields where more text is needed first

SPACE = re.compile(r"\s*")
OPEN = "<tool_call>"
CLOSE = "</tool_call>"
NO_ARGUMENTS = "{}"
MAX_NAME_CHARS = 256  # a call has no longer key and no longer function name
ARGUMENTS = ("arguments", "parameters")
OUTSIDE = re.compile(r'[^"{}\[\]<]*')  # characters of an object or a list that are neither string nor bracket
PLAIN_OUTSIDE = re.compile(r"[\s\d+.,:aefilnrstuyEIN-]*")  # the same, only those that JSON has
INSIDE = re.compile(r'[^"\\}]*')  # characters of a string without a meaning
TEXT_INSIDE = re.compile(r'[^"\\]*')
STEPS = {"{": 1, "[": 1, "}": -1, "]": -1, '"': 0}  # of the depth
LITERAL = re.compile(r"[-+.\w]*")
SIMPLE_ESCAPES = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
UNICODE_ESCAPE = re.compile(r"\\u[0-9a-fA-F]{4}")
PAIR_ESCAPE = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}")


class TextSource:
    """The text that was not read yet. What a reader gets never depends on how the text was cut.

    Attributes:
        text: the text from a position that was kept, or that was read up to, on.
        position: index in ``text`` of the next character.
        is_over: True if the text is complete.
    """

    def __init__(self) -> None:
        self.text = ""
        self.position = 0
        self.is_over = False
        self._is_kept = False

    def add(self, text: str) -> None:
        """Add the next piece. Indices into ``text`` stay valid only while it is kept."""
        if not self._is_kept:
            self.text, self.position = self.text[self.position :], 0
        self.text += text

    def keep(self) -> int:
        """Keep all text from the present position on, and return that position."""
        self._is_kept = True
        return self.position

    def release(self, position: int | None = None) -> None:
        """End ``keep``; with ``position``, continue from there."""
        self._is_kept = False
        if position is not None:
            self.position = position

    def take(self, pattern: re.Pattern[str]) -> str:
        """Read what matches of the text that is there. ``pattern`` also matches the empty text."""
        match = pattern.match(self.text, self.position)
        assert match is not None
        self.position = match.end()
        return match.group()

    def ahead(self, num_chars: int = 1) -> Reading[str]:
        """Return the next characters without reading them; fewer, perhaps none, at the end."""
        while len(self.text) - self.position < num_chars and not self.is_over:
            yield
        return self.text[self.position : self.position + num_chars]

    def past_space(self) -> Reading[str]:
        """Read white space and return the character behind it, which is not read; empty at the end."""
        while True:
            self.take(SPACE)
            if char := self.text[self.position : self.position + 1]:
                return char
            if self.is_over:
                return ""
            yield

    def tag_ahead(self, *tags: str) -> Reading[str]:
        """Return the one of ``tags`` that is next, without reading it; empty if none is."""
        most = max(map(len, tags), default=0)
        while True:
            rest = self.text[self.position : self.position + most]
            if found := next((tag for tag in tags if rest.startswith(tag)), ""):
                return found
            if self.is_over or not any(tag.startswith(rest) for tag in tags):
                return ""
            yield


@dataclass(frozen=True, slots=True)
class CallBegun:
    """A call of this function begins."""

    name: str


@dataclass(frozen=True, slots=True)
class Arguments:
    """The next characters of the call's arguments."""

    text: str


@dataclass(frozen=True, slots=True)
class CallEnded:
    """The call is over. ``is_complete``: False if the output, or the closing tag, cut its arguments off."""

    is_complete: bool


CallEvent = CallBegun | Arguments | CallEnded


class _BrokenError(Exception):
    """The next character can't be part of a call."""


class CallReader:
    """Reads the object behind an opening tag.

    A call has begun once its name and the first character of its arguments are known. Before, text that
    can't be part of a call turns all of it into text. Afterwards, such text ends the call.

    Args:
        source: the text, kept from the object on: the reader releases it when the call begins.
        emit: receives the events.
    """

    def __init__(self, source: TextSource, emit: Callable[[CallEvent], object]) -> None:
        self._source = source
        self._emit = emit
        self._name: str | None = None
        self._has_begun = False
        self._has_arguments = False
        self._is_written = False  # the arguments were read to their end
        self._early: list[str] = []  # arguments that came before the name

    def read(self) -> Reading[bool]:
        """Read the call. Return False, without an event, if the text is not a call."""
        is_complete = True
        try:
            yield from self._object()
        except _BrokenError:
            if not self._has_begun:
                return False
            is_complete = self._is_written
        self._emit(CallEnded(is_complete))
        return True

    def _object(self) -> Reading[None]:
        yield from self._next_of("{")
        while (yield from self._next_of('"}')) == '"':
            yield from self._member()
            if (yield from self._next_of(",}")) == "}":
                break
        if not self._has_arguments:
            self._has_arguments = True
            self._write(NO_ARGUMENTS)
        self._begin()

    def _member(self) -> Reading[None]:
        """Read a key behind its quote, and its value. Of several arguments the first count."""
        key = yield from self._short_string()
        yield from self._next_of(":")
        if key == "name" and not self._has_begun:
            yield from self._next_of('"')
            self._name = yield from self._short_string()
            if self._has_arguments:
                self._begin()
        elif key in ARGUMENTS and not self._has_arguments:
            yield from self._arguments()
            self._is_written = True
        else:
            yield from self._value(lambda _: None)

    def _begin(self) -> None:
        if self._has_begun:
            return
        if not self._name:
            raise _BrokenError
        self._has_begun = True
        self._source.release()
        self._emit(CallBegun(self._name))
        for text in self._early:
            self._emit(Arguments(text))

    def _write(self, text: str) -> None:
        if self._has_begun:
            self._emit(Arguments(text))
        else:
            self._early.append(text)

    def _arguments(self) -> Reading[None]:
        char = yield from self._source.past_space()
        if char in ("{", "["):
            self._begin_arguments()
            yield from self._nested(self._write)
        elif char == '"':
            yield from self._quoted_arguments()
        else:
            literal = yield from self._literal()
            self._begin_arguments()
            self._write(NO_ARGUMENTS if literal == "null" else literal)

    def _begin_arguments(self) -> None:
        """Begin the call if its name is known."""
        self._has_arguments = True
        if self._name is not None:
            self._begin()

    def _quoted_arguments(self) -> Reading[None]:
        """Read arguments that are a string: its meaning, without the quotes."""
        self._source.position += 1
        space = written = ""
        meant = " "
        while meant.isspace():
            written, meant = yield from self._char_inside()
            space += meant
        if written == "":
            raise _BrokenError
        self._begin_arguments()
        if written == '"':
            self._write(NO_ARGUMENTS)
            return
        self._write(space)
        while True:
            self._write(self._source.take(TEXT_INSIDE))
            written, meant = yield from self._char_inside()
            if written == "":
                raise _BrokenError
            if written == '"':
                return
            self._write(meant)

    def _short_string(self) -> Reading[str]:
        """Read a string behind its quote, and return its meaning."""
        text = ""
        while True:
            written, meant = yield from self._char_inside()
            if written == '"':
                return text
            text += meant
            if written in ("", "\n", "\r") or len(text) > MAX_NAME_CHARS:
                raise _BrokenError

    def _char_inside(self) -> Reading[tuple[str, str]]:
        """Read a character or an escape of a string: as it is written, and its meaning.

        An escape without a meaning, such as half a surrogate pair, means itself. Empty at the end.
        """
        written = meant = yield from self._source.ahead()
        if written == "\\":
            written = yield from self._source.ahead(2)
            meant = SIMPLE_ESCAPES.get(written[1:], written)
        if written == "\\u":
            written, meant = yield from self._unicode_escape()
        self._source.position += len(written)
        return written, meant

    def _unicode_escape(self) -> Reading[tuple[str, str]]:
        escape = yield from self._source.ahead(6)
        if not UNICODE_ESCAPE.fullmatch(escape):
            return escape[:2], escape[:2]
        if (code := int(escape[2:], 16)) < 0xD800 or code > 0xDFFF:
            return escape, chr(code)
        pair = yield from self._source.ahead(12)
        if PAIR_ESCAPE.fullmatch(pair):
            return pair, chr(0x10000 + ((code - 0xD800) << 10) + int(pair[8:], 16) - 0xDC00)
        return escape, escape

    def _value(self, write: Callable[[str], object]) -> Reading[None]:
        char = yield from self._source.past_space()
        if char == '"':
            self._source.position += 1
            write(char)
            yield from self._string(write)
        elif char in ("{", "["):
            yield from self._nested(write)
        else:
            write((yield from self._literal()))

    def _literal(self) -> Reading[str]:
        """Read a number or a word, as far as it is followed by what may follow a value."""
        literal = ""
        while True:
            literal += self._source.take(LITERAL)
            char = yield from self._source.ahead()
            if not LITERAL.fullmatch(char) or not char:
                break
        if literal[:1] in ("", ".") or (yield from self._source.past_space()) not in (",", "}"):
            raise _BrokenError
        return literal

    def _nested(self, write: Callable[[str], object]) -> Reading[None]:
        """Read an object or a list up to its end. Only brackets are counted."""
        depth = 0
        while True:
            outside = OUTSIDE if self._has_begun else PLAIN_OUTSIDE
            write(self._source.take(outside))
            char = yield from self._source.ahead()
            if char and outside.fullmatch(char):
                continue
            if char not in STEPS and (yield from self._ends_here(char)):
                raise _BrokenError
            self._source.position += 1
            write(char)
            depth += STEPS.get(char, 0)
            if char == '"':
                yield from self._string(write)
            elif not depth:
                return

    def _ends_here(self, char: str) -> Reading[bool]:
        """Return True if no object continues with ``char``, which is neither a bracket nor a quote."""
        if char == "<" and self._has_begun:
            return bool((yield from self._source.tag_ahead(OPEN, CLOSE)))
        return True

    def _string(self, write: Callable[[str], object]) -> Reading[None]:
        """Read a string behind its quote, and the quote at its end."""
        while True:
            write(self._source.take(INSIDE))
            char = yield from self._source.ahead()
            if char == "":
                raise _BrokenError
            if char == "}" and self._has_begun:
                if (yield from self._brace_in_string(write)):
                    return
                continue
            written = yield from self._source.ahead(2 if char == "\\" else 1)
            self._source.position += len(written)
            write(written)
            if char == '"':
                return

    def _brace_in_string(self, write: Callable[[str], object]) -> Reading[bool]:
        """Read a brace in a string of a call that has begun. True if the string was read to its end as well.

        A brace and a closing tag end the call if no JSON string continues behind them: the model has
        then forgotten the quote, or escaped it, as in ``"C:\\dir\\"``. The brace ends the call's object.
        """
        start = self._source.keep()
        self._source.position += 1
        yield from self._source.past_space()
        tag = self._source.position
        is_end = is_read = False
        if (yield from self._source.tag_ahead(CLOSE)):
            is_read = yield from self._ends_as_json()
            is_end = not is_read
        self._source.release(tag if is_end else None)
        if is_end:
            raise _BrokenError
        write(self._source.text[start : self._source.position])
        return is_read

    def _ends_as_json(self) -> Reading[bool]:
        """Read the rest of a string. True if JSON continues behind it, where the source then stands."""
        while True:
            self._source.take(TEXT_INSIDE)
            char = yield from self._source.ahead()
            written = yield from self._source.ahead(2 if char == "\\" else 1)
            self._source.position += len(written)
            if char in ("", '"'):
                break
        end = self._source.position
        follows = yield from self._source.past_space()
        self._source.position = end
        return char == '"' and follows in (",", ":", "}", "]")

    def _next_of(self, chars: str) -> Reading[str]:
        """Read one of ``chars``, and white space before it."""
        char = yield from self._source.past_space()
        if not char or char not in chars:
            raise _BrokenError
        self._source.position += 1
        return char
