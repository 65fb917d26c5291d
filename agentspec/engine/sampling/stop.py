"""Stop strings: the end of an output's text, independent of token boundaries.

:class:`StopStrings` knows text only, no tokens. :class:`ShownTokens` counts the tokens of the text that it
let through.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from agentspec.generation import LateStop


class StopStrings:
    """Cuts a stream of text before the first stop string.

    No character of a stop string is ever let through. Text that may still become a stop string is held back:
    at most ``len(longest stop string) - 1`` characters.

    Args:
        late: one more stop string, once its mark has been seen.
    """

    def __init__(self, stops: Sequence[str], late: LateStop | None = None) -> None:
        self._stops = tuple(stops)
        self._late = late
        self._before = ""  # end of the text that was shown, perhaps a part of the mark
        self._held = ""
        self.is_hit = False

    def __bool__(self) -> bool:
        return bool(self._stops) or self._late is not None

    def push(self, text: str, *, is_early: bool = False) -> str:
        """Take new text and return the part that may be sent. After a stop string returns "". O(text).

        ``is_early``: the output must not end in this text yet, so a stop string in it is ordinary text.
        """
        if self.is_hit:
            return ""
        text, self._held = self._held + text, ""
        if self._late is None:
            return self._cut(text, is_early)
        joined = self._before + text
        start = joined.find(self._late.mark)
        if start < 0:
            shown = self._cut(text, is_early)
            self._before = (self._before + shown)[1 - len(self._late.mark) :]
            return shown
        end = start + len(self._late.mark) - len(self._before)
        shown = self._cut(text[:end], is_early)
        self._stops, self._late = (*self._stops, self._late.stop), None
        return shown + self.push(text[end:], is_early=is_early)

    def flush(self) -> str:
        """Return the withheld text, after the output has ended without a stop string."""
        held, self._held = self._held, ""
        return held

    def _cut(self, text: str, is_early: bool) -> str:
        starts = [start for stop in self._stops if (start := text.find(stop)) >= 0 and not is_early]
        if starts:
            self.is_hit = True
            return text[: min(starts)]
        shown = len(text) - self._num_held(text)
        self._held = text[shown:]
        return text[:shown]

    def _num_held(self, text: str) -> int:
        """Length of the longest end of ``text`` that a stop string starts with."""
        return max((_overlap(text, stop) for stop in self._stops), default=0)


class ShownTokens:
    """Counts the tokens of an output with text that was sent completely.

    A token without text, such as the first bytes of a character, counts with the next token that has text.

    Attributes:
        num: number of these tokens.
    """

    def __init__(self) -> None:
        self.num = 0
        self._num_read = 0
        self._text_size = 0
        self._shown_size = 0
        self._held: deque[tuple[int, int]] = deque()  # of the others: size of the text, number of tokens

    def add(self, text: str, shown: str) -> None:
        """Add the next token's text, and the text that could be sent after it. O(1) amortized."""
        self._num_read += 1
        self._text_size += len(text)
        self._shown_size += len(shown)
        if text:
            self._held.append((self._text_size, self._num_read))
        while self._held and self._held[0][0] <= self._shown_size:
            _, self.num = self._held.popleft()


def _overlap(text: str, stop: str) -> int:
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
