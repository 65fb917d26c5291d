"""The input of both sides: real model outputs and prompts as token ids."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from agentspec.errors import ConfigError
from agentspec.replay.calls import TEKKEN, Encode, load_tokenizer
from benchmarks.core.sides import Tokens
from benchmarks.core.sizes import Sizes
from benchmarks.harness import traces

HELD_OUT = 4  # every fourth session is reserved for prompts, so that no prompt quotes the history


@dataclass(frozen=True, slots=True)
class Corpus:
    """Token ids, the same for the same traces and sizes.

    Attributes:
        mixed: responses of all traces, whole sessions in random order.
        repeated: fewer responses, each occurring several times, in random order.
        history: responses that the decoders have learned.
        text: prompts and responses of other sessions, end to end.
        outputs: responses of those sessions, end to end.
    """

    mixed: list[Tokens]
    repeated: list[Tokens]
    history: list[Tokens]
    text: Tokens
    outputs: Tokens

    def prompts(self, number: int, num_tokens: int, seed: int) -> list[Tokens]:
        """Return random stretches of the text."""
        begins = np.random.default_rng(seed).integers(0, len(self.text) - num_tokens + 1, number)
        return [self.text[begin : begin + num_tokens].copy() for begin in begins]


@dataclass(slots=True)
class _Session:
    responses: list[str] = field(default_factory=list)
    longest_call: str = ""  # later prompts of a session quote the earlier ones: one call represents all


def load(directory: Path, sizes: Sizes) -> Corpus:
    """Read and tokenize the required part of the traces.

    Raises:
        ConfigError: there are no traces, or too few.
    """
    sessions = _read(directory)
    random.Random(0).shuffle(sessions)
    encode = load_tokenizer(TEKKEN)
    held_out = sessions[::HELD_OUT]
    learned = [session for i, session in enumerate(sessions) if i % HELD_OUT]
    mixed = _encoded(_responses(learned), encode, sizes.corpus_tokens)
    repeated = _encoded(_responses(learned), encode, sizes.corpus_tokens // sizes.copies) * sizes.copies
    random.Random(1).shuffle(repeated)
    text = _encoded((session.longest_call for session in held_out), encode, sizes.text_tokens)
    outputs = _encoded(_responses(held_out), encode, sizes.output_tokens)
    return Corpus(mixed, repeated, mixed[: sizes.num_history], np.concatenate(text), np.concatenate(outputs))


def _read(directory: Path) -> list[_Session]:
    sessions: dict[tuple[str, str], _Session] = defaultdict(_Session)
    for path in traces.files(directory):
        for call in traces.calls(path):
            session = sessions[path.name, call["session"]]
            session.responses.append(call["response"])
            session.longest_call = max(session.longest_call, call["prompt"] + call["response"], key=len)
    return list(sessions.values())


def _responses(sessions: Iterable[_Session]) -> Iterator[str]:
    return (response for session in sessions for response in session.responses)


def _encoded(texts: Iterable[str], encode: Encode, num_tokens: int) -> list[Tokens]:
    documents = traces.encoded(texts, encode, num_tokens)
    if (found := sum(map(len, documents))) < num_tokens:
        raise ConfigError(f"too few traces: {num_tokens} tokens are needed and {found} were found")
    return documents
