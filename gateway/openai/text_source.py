"""Text that comes in pieces, for readers that are written as if all of it were there."""

from __future__ import annotations

import re
from collections.abc import Generator
from typing import TypeVar

Result = TypeVar("Result")
Reading = Generator[None, None, Result]  # yields where more text is needed first

SPACE = re.compile(r"\s*")


class TextSource:
    """The text that was not read yet. What a reader gets never depends on how the text was cut.

    Attributes:
        text: the text from a position that was kept, or that was read up to, on.
        position: index in ``text`` of the next character.
        is_over: no more text will come.
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
        """End ``keep``; with ``position`` go on from there."""
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
        """Return which of ``tags`` comes next, without reading it; empty if none."""
        most = max(map(len, tags), default=0)
        while True:
            rest = self.text[self.position : self.position + most]
            if found := next((tag for tag in tags if rest.startswith(tag)), ""):
                return found
            if self.is_over or not any(tag.startswith(rest) for tag in tags):
                return ""
            yield
