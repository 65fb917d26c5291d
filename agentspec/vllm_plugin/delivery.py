"""Finds the part of vLLM's output that the client received. Only this part is learned, shared and counted.

vLLM looks for stop strings in another process, which then aborts the request. Until then the worker samples
tokens that no client gets. So the worker also looks for stop strings after the end of a request. Does not
import vLLM.
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
    """The part of an output that the client received.

    Attributes:
        num_whole: number of first tokens with text that the client received completely. These are learned.
        num_counted: number of tokens of the output as the client counts them: up to the token that ended it.
    """

    num_whole: int
    num_counted: int


@dataclass(frozen=True, slots=True)
class StopStrings:
    """A request's stop strings, with the meaning that vLLM's front end gives them.

    Attributes:
        texts: the strings, at least one.
        is_included: True if the client gets the string that ended its output.
        min_tokens: number of first tokens in which stop strings are ignored.
    """

    texts: tuple[str, ...]
    is_included: bool = False
    min_tokens: int = 0

    @classmethod
    def of(cls, params: SamplingParams) -> StopStrings | None:
        """Return the stop strings of vLLM's ``SamplingParams``; None without any."""
        stop = getattr(params, "stop", None) or ()
        texts = (stop,) if isinstance(stop, str) else tuple(stop)
        if not texts:
            return None
        return cls(texts, params.include_stop_str_in_output, params.min_tokens)

    def find(self, pieces: Iterable[str]) -> Delivered | None:
        """Return the part up to the first stop string; None if no stop string occurs.

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
        """Return the size of the text that the client gets; None without a stop string.

        The last ``num_new`` characters of ``text`` are new.
        """
        found = [
            start + len(stop) * self.is_included
            for stop in self.texts
            if (start := text.find(stop, max(0, len(text) - num_new - len(stop) + 1))) >= 0
        ]
        return min(found, default=None)


@dataclass(slots=True)
class Call:
    """The requests of one response: its choices, or its prompts.

    Attributes:
        num_live, num_ended: number of requests that run, and that have ended.
        ended: the ended requests, each with its row and the part that its client would receive alone.
        is_lost: True if the end of one of the requests is not known.
    """

    name: str
    num_live: int = 0
    num_ended: int = 0
    ended: list[tuple[Any, Any, Delivered | None]] = field(default_factory=list)
    is_lost: bool = False


def call_of(request_id: str) -> str | None:
    """Return the name of the call that a vLLM request is part of; None if it is the whole call."""
    match = _OF_CALL.fullmatch(request_id)
    if match is None:
        return None
    prompts = _OF_PROMPTS.fullmatch(match["call"])
    if prompts is not None:
        return prompts["call"]
    return match["call"] if match["choice"] else None


def is_answered_at_end(params: SamplingParams) -> bool:
    """Return True if the client does not stream, and so receives nothing before the call's end."""
    kind = getattr(params, "output_kind", None)
    return kind is not None and kind == getattr(type(kind), "FINAL_ONLY", None)
