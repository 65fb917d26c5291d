"""What clients receive of vLLM's outputs: only that is learned, shared with other engines, and counted.

vLLM looks for stop strings in another process, which then aborts the request: its worker has sampled tokens
that no client gets. So the worker looks for them as well, once a request is over. Does not import vLLM.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from vllm.sampling_params import SamplingParams

_OF_CALL = re.compile(r"(?P<choice>\d+_)?(?P<call>.+)")
_OF_PROMPTS = re.compile(r"(?P<call>cmpl-.+)-\d+-[0-9a-f]{8}")


class Delivered(NamedTuple):
    """What the client received of an output.

    Attributes:
        num_whole: first tokens whose text it received to the end. These are learned.
        num_counted: tokens of the output as the client counts them: up to the one that ended it.
    """

    num_whole: int
    num_counted: int


@dataclass(frozen=True, slots=True)
class StopStrings:
    """A request's stop strings, as vLLM's front end applies them.

    Attributes:
        texts: the strings, at least one.
        is_included: the client gets the string that ended its output.
        min_tokens: the first tokens in which none is looked for.
    """

    texts: tuple[str, ...]
    is_included: bool = False
    min_tokens: int = 0

    @classmethod
    def of(cls, params: SamplingParams) -> StopStrings | None:
        """Return those of vLLM's ``SamplingParams``; None if it has none."""
        stop = getattr(params, "stop", None) or ()
        texts = (stop,) if isinstance(stop, str) else tuple(stop)
        if not texts:
            return None
        return cls(texts, params.include_stop_str_in_output, params.min_tokens)

    def find(self, pieces: Iterable[str]) -> Delivered | None:
        """Return what the client receives up to the first stop string; None if the output has none.

        Args:
            pieces: the text that each token adds to the output. A token without text, such as the first bytes
                of a character, counts with the next one that has some.
        """
        text = ""
        ends: list[tuple[int, int]] = []  # size of the text behind a token, number of the token
        for number, piece in enumerate(pieces, 1):
            text += piece
            if not piece:
                continue
            ends.append((len(text), number))
            if number <= self.min_tokens or (size := self._cut(text, len(piece))) is None:
                continue
            num_whole = next((token for end, token in reversed(ends) if end <= size), 0)
            return Delivered(num_whole, number)
        return None

    def _cut(self, text: str, num_new: int) -> int | None:
        """Return the size that the client gets of a text whose last ``num_new`` characters are new."""
        found = [
            start + len(stop) * self.is_included
            for stop in self.texts
            if (start := text.find(stop, max(0, len(text) - num_new - len(stop) + 1))) >= 0
        ]
        return min(found, default=None)


@dataclass(slots=True)
class Call:
    """The requests whose outputs one response has: of several choices, or of several prompts.

    Attributes:
        num_live, num_ended: requests that run, and that have ended.
        ended: these, each with its row and what its client received by itself.
        is_lost: the end of one of them is not known.
    """

    name: str
    num_live: int = 0
    num_ended: int = 0
    ended: list[tuple[Any, Any, Delivered | None]] = field(default_factory=list)
    is_lost: bool = False


def call_of(request_id: str) -> str | None:
    """Return the name of the call that a request of vLLM is a part of; None if it is a call of its own."""
    match = _OF_CALL.fullmatch(request_id)
    if match is None:
        return None
    prompts = _OF_PROMPTS.fullmatch(match["call"])
    if prompts is not None:
        return prompts["call"]
    return match["call"] if match["choice"] else None


def is_answered_at_end(params: SamplingParams) -> bool:
    """Return True if the client gets nothing before the end of the whole call: it does not stream."""
    kind = getattr(params, "output_kind", None)
    return kind is not None and kind == getattr(type(kind), "FINAL_ONLY", None)
