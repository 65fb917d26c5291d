"""An output that is being written, as its engine shows it to others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from agentspec.stages import StageKey

if TYPE_CHECKING:  # the constants do without the extra
    from agentspec.corpus.output import Tokens
    from agentspec.corpus.output_queue import Entry

LEAST_PART = 32  # tokens: fewer wait for the next ones
MOST_MORE = 256  # a part has as many tokens more as were sent before, up to this number
MOST_SHOWN_TOKENS = 8192  # a longer output is not followed further


class WrittenOutput:
    """Sends the tokens of one output in parts.

    A part may cost a batch, however short it is. So the output doubles from part to part.

    Args:
        stage: the forest's key.
        subject: hash of the person with data in it.
        number: of the output, among those of this process.
        put: takes the parts.
        least: tokens of a part.
        most_more: a part has as many tokens more as were sent before, up to this number.

    Attributes:
        num_shown: tokens sent so far.
    """

    __slots__ = (
        "_due",
        "_is_over",
        "_least",
        "_most_more",
        "_put",
        "_stage",
        "_subject",
        "num_shown",
        "number",
    )

    def __init__(
        self,
        stage: StageKey,
        subject: bytes,
        number: int,
        put: Callable[[Entry], None],
        least: int = LEAST_PART,
        most_more: int = MOST_MORE,
    ) -> None:
        self._stage = stage
        self._subject = subject
        self._put = put
        self._least = least
        self._most_more = most_more
        self._due = least  # tokens of the output at which the next part is sent
        self._is_over = False
        self.number = number
        self.num_shown = 0

    def show(self, token_ids: Tokens | Sequence[int]) -> None:
        """Send the new tokens of the output, if there are enough. Takes a microsecond, and never raises.

        Args:
            token_ids: the output so far.
        """
        if len(token_ids) >= self._due and not self._is_over:
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
        self._due = self.num_shown + self._least + min(self.num_shown, self._most_more)
