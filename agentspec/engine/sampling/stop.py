"""Stop strings: the end of an output's text, independent of token boundaries.

Knows text only, no tokens.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Cuts a stream of text before the first stop string.

    No character of a stop string is ever let through. What may still become one is held back, and
    no more than that: at most ``len(longest stop string) - 1`` characters.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.is_hit = False

    def __bool__(self) -> bool:
        return bool(self._stops)

    def push(self, text: str, *, is_early: bool = False) -> str:
        """Take new text; return what may be shown of it. Nothing is shown once a stop was hit. O(text).

        ``is_early``: the output must not end in this text yet, so a stop string in it is text.
        """
        if self.is_hit:
            return ""
        text = self._held + text
        starts = [start for stop in self._stops if (start := text.find(stop)) >= 0 and not is_early]
        if starts:
            self.is_hit = True
            self._held = ""
            return text[: min(starts)]
        shown = len(text) - self._num_held(text)
        self._held = text[shown:]
        return text[:shown]

    def flush(self) -> str:
        """Return the withheld text: the output ended without a stop string."""
        held, self._held = self._held, ""
        return held

    def _num_held(self, text: str) -> int:
        """Length of the longest end of ``text`` that a stop string starts with."""
        return max((_overlap(text, stop) for stop in self._stops), default=0)


def _overlap(text: str, stop: str) -> int:
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
