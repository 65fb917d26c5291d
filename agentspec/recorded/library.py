"""A library of recorded calls, looked up by conversation.

Equivalent spellings of a conversation have one key: text as a string or in parts, ``developer`` or
``system``, the white space of JSON. Ids of tool calls are left out, as they differ between runs.
"""

from __future__ import annotations

import json
import logging
from collections import defaultdict
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from operator import eq
from threading import Lock
from typing import Any, NamedTuple

from agentspec.errors import UnrecordedCallError
from agentspec.recorded.calls import Message, Prompt, RecordedAnswer, RecordedCall, said, tool_calls
from agentspec.recorded.varying import mask_varying


class Turn(NamedTuple):
    """One message: its role, and its text with its tool calls."""

    role: str
    text: str

    def digest(self) -> bytes:
        """Return a digest of the turn, equal for equal turns."""
        return blake2b(f"{self.role}\0{self.text}".encode("utf-8", "surrogatepass"), digest_size=16).digest()

    def masked(self) -> Turn:
        """Return the turn without the parts that vary between runs."""
        return Turn(self.role, mask_varying(self.text))


def turns(prompt: Prompt) -> list[Turn]:
    """Return the messages as turns. Raw text is a user's turn. Raises ConfigError for a malformed message."""
    if isinstance(prompt, str):
        return [Turn("user", prompt)]
    return [_turn(message) for message in prompt]


def _turn(message: Message) -> Turn:
    role, text = message["role"], said(message)
    if role == "assistant":  # a message sent back may have lost the white space around its calls
        calls = [[name, _parsed(arguments)] for name, arguments in tool_calls(message)]
        text = "\n".join([text.strip(), *(json.dumps(call, sort_keys=True) for call in calls)])
    return Turn("system" if role == "developer" else role, text)


def _parsed(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments


logger = logging.getLogger(__name__)

Key = tuple[bytes, ...]  # a digest per turn


class RecordedChoice(NamedTuple):
    """One answer, and its line in the file."""

    line: int
    answer: RecordedAnswer


class CallLibrary:
    """Recorded answers by conversation. Stores digests, not prompts. Safe to call from several threads.

    A conversation that was recorded more than once has its answers returned in order, cyclically. For a
    conversation without an equal record, the library uses records that differ only in parts that vary between
    runs (``varying``). Of several such records, those with the most equal turns count.
    """

    def __init__(self, calls: Iterable[RecordedCall]) -> None:
        self._choices: defaultdict[Key, list[RecordedChoice]] = defaultdict(list)
        self._alike: defaultdict[Key, dict[Key, None]] = defaultdict(dict)  # by masked turns
        self._masked: dict[bytes, bytes] = {}  # digest of a recorded turn -> digest of its masked form
        self._num_taken: defaultdict[Key, int] = defaultdict(int)
        self._lock = Lock()
        for call in calls:
            self._add(call)

    def __len__(self) -> int:
        """Return the number of answers."""
        return sum(map(len, self._choices.values()))

    def _add(self, call: RecordedCall) -> None:
        key, masked = self._keys(turns(call.prompt), is_kept=True)
        self._choices[key] += [RecordedChoice(call.line, answer) for answer in call.answers]
        self._alike[masked][key] = None

    def take(self, prompt: Prompt, num_choices: int = 1) -> list[RecordedChoice]:
        """Return the next answers to this conversation.

        Raises:
            UnrecordedCallError: no record matches; the message names the nearest one.
            ConfigError: a message is malformed.
        """
        asked = turns(prompt)
        key = tuple(turn.digest() for turn in asked)
        if key in self._choices:
            return self._next(key, self._choices[key], num_choices)
        key, masked = self._keys(asked)
        if masked not in self._alike:
            raise UnrecordedCallError(self._miss(asked, masked))
        nearest = _most_alike(key, list(self._alike[masked]))
        choices = [choice for one in nearest for choice in self._choices[one]]
        taken = self._next(masked, sorted(choices, key=lambda choice: choice.line), num_choices)
        logger.info("line %d answers a call that differs only in ids, paths or times", taken[0].line)
        return taken

    def _next(self, key: Key, choices: Sequence[RecordedChoice], num_choices: int) -> list[RecordedChoice]:
        with self._lock:
            first = self._num_taken[key]
            self._num_taken[key] += num_choices
        return [choices[number % len(choices)] for number in range(first, first + num_choices)]

    def _keys(self, asked: Sequence[Turn], *, is_kept: bool = False) -> tuple[Key, Key]:
        """Return the digests of the turns, and those of the masked turns."""
        key = tuple(turn.digest() for turn in asked)
        masked = []
        for digest, turn in zip(key, asked, strict=True):
            known = self._masked.get(digest) or turn.masked().digest()
            if is_kept:
                self._masked[digest] = known
            masked.append(known)
        return key, tuple(masked)

    def _miss(self, asked: Sequence[Turn], masked: Key) -> str:
        """Return the error message for a call that was not recorded. It holds no text of a conversation."""
        told = f"no recorded call has this conversation of {len(asked)} messages"
        if not self._alike:
            return f"{told}: the file has none at all"
        nearest = _most_alike(masked, list(self._alike))[0]
        line = self._choices[next(iter(self._alike[nearest]))][0].line
        pairs = zip(masked, nearest, strict=False)
        differing = next((index for index, (one, other) in enumerate(pairs) if one != other), None)
        if differing is not None:
            return (
                f"{told}; the nearest is line {line}: messages[{differing}] ({asked[differing].role}) differs"
            )
        return f"{told}; the nearest is line {line}: the same up to its end, but with {len(nearest)} messages"


def _most_alike(key: Key, others: Sequence[Key]) -> list[Key]:
    """Return the keys with the most equal turns in the same place; of these, those of the nearest length."""
    ranks = [(-sum(map(eq, key, other)), abs(len(key) - len(other))) for other in others]
    nearest = min(ranks)
    return [other for other, rank in zip(others, ranks, strict=True) if rank == nearest]
