"""Recorded agent calls as token ids, shared out among loads.

Token ids are renumbered densely, in the tokenizer's order, so that they fit the vocabulary of any model.
"""

from __future__ import annotations

import hashlib
import json
import lzma
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from agentspec.errors import ConfigError
from agentspec.forest import Tokens
from agentspec.replay.calls import Encode, RecordedCall, read
from agentspec.reporting.report import Announce
from benchmarks.harness import traces

NO_AGENTS = ("codegen", "spec_bench", "tot_text")  # files of single questions
TRIALS = ("tau_bench",)  # files with several trials of a task: only the first is taken
MOST_CHARS_PER_TOKEN = 6  # a longer text exceeds the token limit anyway
PAST, LIVE = 0, 1  # halves of the calls; no task is in both

Session = tuple[str, Sequence[RecordedCall]]  # with the name of its workflow
Source = Callable[[int], Iterator[Session]]  # of a half


@dataclass(frozen=True, slots=True)
class Load:
    """A number of clients, and the output tokens that they ask for in total, at least.

    Attributes:
        is_past: unmeasured calls from the other half of the tasks, to learn from.
    """

    name: str
    num_clients: int
    num_tokens: int
    is_past: bool = False


@dataclass(frozen=True, slots=True)
class Sizes:
    """The loads in order.

    Attributes:
        most_prompt, most_response: tokens of the longest call; longer ones are left out.
    """

    loads: tuple[Load, ...]
    most_prompt: int
    most_response: int


FULL = Sizes(
    (
        Load("past", 32, 20_000, is_past=True),
        Load("64", 64, 90_000),
        Load("8", 8, 16_000),
        Load("1", 1, 2_500),
    ),
    most_prompt=6_144,
    most_response=1_024,
)
QUICK = Sizes(
    (Load("past", 4, 400, is_past=True), Load("4", 4, 800), Load("1", 1, 200)),
    most_prompt=512,
    most_response=96,
)


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """One call as int32 token ids. The response ends with an end token."""

    stage: str
    session: str
    prompt: Tokens
    response: Tokens


@dataclass(frozen=True, slots=True)
class Calls:
    """Prepared calls.

    Attributes:
        sessions: by load, the calls of each session, in order; indices into ``calls``.
        num_ids: number of different token ids, which are 0 to ``num_ids - 1``.
    """

    calls: Sequence[Call]
    sessions: Mapping[str, Sequence[Sequence[int]]]
    sizes: Sizes
    num_ids: int

    @property
    def longest(self) -> int:
        """Number of tokens of the longest call, prompt and response together."""
        return max(len(call.prompt) + len(call.response) for call in self.calls)

    def flat(self) -> tuple[Tokens, np.ndarray[Any, np.dtype[np.int64]]]:
        """Return all calls' tokens in sequence, and where each begins; a last element is the end."""
        texts = [np.concatenate([call.prompt, call.response]) for call in self.calls]
        starts = np.cumsum([0, *map(len, texts)], dtype=np.int64)
        return np.concatenate(texts), starts

    def save(self, path: Path) -> None:
        """Write the calls to an xz file."""
        tokens, starts = self.flat()
        described = {
            "calls": [(call.stage, call.session, len(call.prompt)) for call in self.calls],
            "sessions": self.sessions,
            "sizes": asdict(self.sizes),
            "num_ids": self.num_ids,
            "starts": starts.tolist(),
        }
        with lzma.open(path, "wb") as file:
            file.write(json.dumps(described).encode() + b"\n")
            file.write(tokens.astype("<i4").tobytes())

    @classmethod
    def load(cls, path: Path) -> Calls:
        """Read the calls. Raises ConfigError if the file was not written by :meth:`save`."""
        try:
            with lzma.open(path, "rb") as file:
                found = json.loads(file.readline())
                tokens = np.frombuffer(file.read(), "<i4").astype(np.int32)
            return cls._of(found, tokens)
        except (OSError, EOFError, lzma.LZMAError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{str(path)!r} does not hold prepared calls: {error}") from None

    @classmethod
    def _of(cls, found: Mapping[str, Any], tokens: Tokens) -> Calls:
        starts, sizes = found["starts"], found["sizes"]
        if len(tokens) != starts[-1]:
            raise ValueError(f"{len(tokens)} tokens instead of {starts[-1]}")
        calls = [
            Call(stage, session, tokens[start : start + length], tokens[start + length : end])
            for (stage, session, length), start, end in zip(found["calls"], starts, starts[1:], strict=False)
        ]
        loads = tuple(Load(**load) for load in sizes["loads"])
        return cls(calls, found["sessions"], Sizes(**{**sizes, "loads": loads}), found["num_ids"])


def digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def prepare(source: Source, sizes: Sizes, encode: Encode, announce: Announce) -> Calls:
    """Take sessions until each load has its tokens, and one for each of its clients.

    Raises:
        ConfigError: there are too few calls.
    """
    waiting = {half: _encoded_sessions(source(half), sizes, encode) for half in (PAST, LIVE)}
    calls: list[Call] = []
    sessions: dict[str, list[list[int]]] = {}
    for load in sizes.loads:
        announce(f"calls for {load.name}")
        taken = sessions[load.name] = []
        num_tokens = 0
        while num_tokens < load.num_tokens or len(taken) < load.num_clients:
            session = next(waiting[PAST if load.is_past else LIVE], None)
            if session is None:
                raise ConfigError(
                    f"there are too few recorded calls: {len(taken)} sessions with {num_tokens} output "
                    f"tokens for {load.name!r}, not {load.num_clients} with {load.num_tokens}"
                )
            taken.append([*range(len(calls), len(calls) + len(session))])
            calls += session
            num_tokens += sum(len(call.response) for call in session)
    return _renumbered(calls, sessions, sizes)


def recorded(folder: Path) -> Source:
    """Return the sessions of all trace files of a folder, in turn.

    Raises:
        ConfigError: the folder has no trace files.
    """
    paths = [path for path in traces.files(folder) if not path.name.startswith(NO_AGENTS)]

    def sessions(half: int) -> Iterator[Session]:
        rows = chain.from_iterable(zip_longest(*(_sessions_of(path, half) for path in paths)))
        return (session for session in rows if session is not None)

    return sessions


def _sessions_of(path: Path, half: int) -> Iterator[Session]:
    sessions: dict[str, list[RecordedCall]] = {}
    first: dict[str, str] = {}
    for call in read(path):
        if call.half() == half:
            is_again = first.setdefault(call.group, call.session) != call.session
            if not (is_again and path.name.startswith(TRIALS)):
                sessions.setdefault(call.session, []).append(call)
    workflow = path.name.partition(".")[0]
    return ((workflow, calls) for calls in sessions.values())


def _encoded_sessions(sessions: Iterator[Session], sizes: Sizes, encode: Encode) -> Iterator[list[Call]]:
    """Yield sessions without calls that are empty or too long."""
    for workflow, session in sessions:
        found = [_encoded(workflow, call, encode) for call in session if _may_fit(call, sizes)]
        if fitting := [one for one in found if _fits(one, sizes)]:
            yield fitting


def _may_fit(call: RecordedCall, sizes: Sizes) -> bool:
    return bool(call.response) and (
        len(call.prompt) <= sizes.most_prompt * MOST_CHARS_PER_TOKEN
        and len(call.response) <= sizes.most_response * MOST_CHARS_PER_TOKEN
    )


def _fits(call: Call, sizes: Sizes) -> bool:
    return 0 < len(call.prompt) <= sizes.most_prompt and 0 < len(call.response) < sizes.most_response


def _encoded(workflow: str, call: RecordedCall, encode: Encode) -> Call:
    stage = f"{workflow}/{call.stage.replace('/', '-')[:64]}"
    session = f"{workflow}-{call.session}"[:255]
    return Call(stage, session, encode(call.prompt), encode(call.response))


def _renumbered(calls: Sequence[Call], sessions: Mapping[str, list[list[int]]], sizes: Sizes) -> Calls:
    known = np.unique(np.concatenate([part for call in calls for part in (call.prompt, call.response)]))
    end = np.int32(len(known))

    def dense(tokens: Tokens) -> Tokens:
        return np.searchsorted(known, tokens).astype(np.int32)

    renumbered = [
        Call(call.stage, call.session, dense(call.prompt), np.append(dense(call.response), end))
        for call in calls
    ]
    return Calls(renumbered, sessions, sizes, len(known) + 1)
