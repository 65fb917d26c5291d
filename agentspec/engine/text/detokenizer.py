"""Token ids to text as they arrive, without splitting a character."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class Detokenizer(Protocol):
    """The text of one output. The pushed and flushed pieces join to the text of all its tokens."""

    def push(self, token_ids: Sequence[int]) -> str:
        """Text that these tokens complete; bytes of an unfinished character wait for the next call."""

    def flush(self) -> str:
        """Return the rest. An unfinished character becomes U+FFFD."""


class ByteDetokenizer:
    """For byte-level tokenizers: each token stands for bytes, so each push costs its own tokens."""

    def __init__(self, bytes_of: Mapping[int, bytes]) -> None:
        self._bytes_of = bytes_of
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_ids: Sequence[int]) -> str:
        """Text that these tokens complete; an id without bytes (a special token) adds nothing."""
        return self._decoder.decode(b"".join(self._bytes_of.get(int(i), b"") for i in token_ids))

    def flush(self) -> str:
        """Return the rest. An unfinished character becomes U+FFFD."""
        return self._decoder.decode(b"", final=True)


class WindowDetokenizer:
    """For tokenizers with tokens that may read differently after other tokens.

    Decodes a window of recent tokens with and without the new ones; the difference is the new text.
    The window moves on with every piece of text that ends in a whole character.
    """

    MAX_HELD_TOKENS = 16  # more than the bytes of a character: a longer sequence is not a character

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._window: list[int] = []
        self._num_read = 0  # tokens of the window with text that was returned

    def push(self, token_ids: Sequence[int]) -> str:
        """Text that these tokens complete."""
        self._window.extend(int(i) for i in token_ids)
        text = self._new_text()
        is_held = len(self._window) - self._num_read <= self.MAX_HELD_TOKENS
        if not text or (text.endswith(REPLACEMENT) and is_held):
            return ""
        del self._window[: self._num_read]
        self._num_read = len(self._window)
        return text

    def flush(self) -> str:
        """Return the rest. An unfinished character becomes U+FFFD."""
        text = self._new_text()
        self._num_read = len(self._window)
        return text

    def _new_text(self) -> str:
        before = self._decode(self._window[: self._num_read])
        return self._decode(self._window)[len(before) :]
