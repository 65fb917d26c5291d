"""An output that is being written, as its engine shows it to others."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from agentspec.corpus.output import Tokens
from agentspec.corpus.output_queue import Entry
from agentspec.stages import StageKey

PART_TOKENS = 4  # fewer tokens wait for the next ones
MOST_SHOWN_TOKENS = 8192  # a longer output is not followed further


class WrittenOutput:
    """Sends the tokens of one output in parts.

    Args:
        stage: the forest's key.
        subject: hash of the person whose data it may hold.
        number: of the output, among those of this process.
        put: takes the parts.

    Attributes:
        num_shown: tokens sent so far.
    """

    __slots__ = ("_is_over", "_put", "_stage", "_subject", "num_shown", "number")

    def __init__(self, stage: StageKey, subject: bytes, number: int, put: Callable[[Entry], None]) -> None:
        self._stage = stage
        self._subject = subject
        self._put = put
        self._is_over = False
        self.number = number
        self.num_shown = 0

    def show(self, token_ids: Tokens | Sequence[int]) -> None:
        """Send what is new of the output, if it is enough. Takes a microsecond, and never raises.

        Args:
            token_ids: the output so far.
        """
        if not self._is_over and len(token_ids) >= self.num_shown + PART_TOKENS:
            self.send(token_ids[self.num_shown :])

    def abandon(self) -> None:
        """End it: other engines forget it, and see no more of it."""
        if self.num_shown and not self._is_over:
            self._put((self._stage, (), self._subject, 0.0, 0, 1, self.number, 0, b""))
        self._is_over = True

    def send(self, token_ids: Tokens | Sequence[int]) -> None:
        """Send the next tokens. They must not change any more. An output that gets too long is abandoned."""
        if self.num_shown + len(token_ids) > MOST_SHOWN_TOKENS:
            self.abandon()
        if self._is_over:
            return
        self._put((self._stage, token_ids, self._subject, 0.0, 0, 1, self.number, self.num_shown, b""))
        self.num_shown += len(token_ids)
