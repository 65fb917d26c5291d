"""An engine process as the corpus sees it: a forest and a corpus with its threads, without a model."""

from __future__ import annotations

import logging
import multiprocessing
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection

import numpy as np

from agentspec import DraftConfig, Forest
from agentspec.corpus.batch import Output
from agentspec.corpus.corpus import Corpus, CorpusConfig
from agentspec.corpus.learner import LearnerFigures
from agentspec.corpus.store import open_store
from agentspec.forest import Tokens
from agentspec.replay.drafter import TENANT
from agentspec.stages import StageKey
from benchmarks.fleet.fleet import forest
from benchmarks.fleet.recorded import VOCAB_SIZE, VOCABULARY

STAGE = StageKey(TENANT, ("marks", "stage"))
MARK_TOKENS = 48
KEY_TOKENS = 12  # of a mark: what a request must have said to get the rest as its draft
_VOCABULARY_USED = 100_000
_LOOK_EVERY_S = 0.001
_MOST_LOOKS = 32  # in one round
START_LIMIT_S = 120.0


@contextmanager
def running_corpus(location: str, trees: Forest, config: CorpusConfig | None = None) -> Iterator[Corpus]:
    """Yield the corpus of a forest, with its threads."""
    corpus = Corpus(open_store(location), VOCABULARY, VOCAB_SIZE, trees, config=config)
    corpus.start()
    try:
        yield corpus
    finally:
        corpus.close()


def mark(number: int) -> Output:
    """Return an output that no other equals."""
    tokens = np.random.default_rng(number).integers(0, _VOCABULARY_USED, MARK_TOKENS)
    return Output(STAGE, tokens.astype(np.int32))


def is_drafted(trees: Forest, tokens: Tokens) -> bool:
    """Return True if a request that has said the first tokens gets the next ones as its draft."""
    trees.start("looking", STAGE, tokens[:KEY_TOKENS], draft=DraftConfig(), learn=False)
    try:
        draft = trees.draft("looking").token_ids
    finally:
        trees.finish("looking")
    return len(draft) > 0 and bool((draft == tokens[KEY_TOKENS : KEY_TOKENS + len(draft)]).all())


@dataclass(frozen=True, slots=True)
class Seen:
    """What a watcher saw.

    Attributes:
        at_s: when each mark was first drafted, in monotonic seconds, which all processes share.
        num_errors: errors that the corpus logged.
        learner: what was learned.
    """

    at_s: dict[int, float]
    num_errors: int
    learner: LearnerFigures


class LoggedErrors(logging.Handler):
    """Counts errors that the package logs: its threads survive them."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.num_errors = 0
        logging.getLogger("agentspec").addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Count a record."""
        self.num_errors += 1


def watch(location: str, pipe: Connection) -> None:
    """Look for marks in the drafts of an engine. Runs in a process of its own.

    The pipe receives ranges of numbers of marks, and None at the end; then it sends a :class:`Seen`.
    """
    trees, errors = forest(), LoggedErrors()
    at_s: dict[int, float] = {}
    awaited: dict[int, Tokens] = {}
    with running_corpus(location, trees) as corpus:
        pipe.send("ready")
        while True:
            while pipe.poll(_LOOK_EVERY_S):
                new = pipe.recv()
                if new is None:
                    return pipe.send(Seen(at_s, errors.num_errors, corpus.figures().learner))
                awaited |= {number: mark(number).tokens for number in new}
            numbers = list(awaited)
            some = random.sample(numbers, min(_MOST_LOOKS, len(numbers)))  # the rest in the next rounds
            for number in {*some, *numbers[-_MOST_LOOKS:]}:
                if is_drafted(trees, awaited[number]):
                    at_s[number] = time.monotonic()
                    del awaited[number]


class Watcher:
    """Another process whose engine looks for marks."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    @classmethod
    @contextmanager
    def running(cls, location: str) -> Iterator[Watcher]:
        """Start the process, and wait until its engine runs."""
        context = multiprocessing.get_context("spawn")
        pipe, other = context.Pipe()
        process = context.Process(target=watch, args=(location, other), daemon=True)
        process.start()
        try:
            if not pipe.poll(START_LIMIT_S):
                raise TimeoutError(f"the other engine did not start within {START_LIMIT_S:g} s")
            pipe.recv()
            yield cls(pipe)
        finally:
            process.kill()
            process.join()

    def look_for(self, numbers: range) -> None:
        """Let it look for these marks."""
        self._pipe.send(numbers)

    def end(self) -> Seen:
        """Return what it saw."""
        self._pipe.send(None)
        seen: Seen = self._pipe.recv()
        return seen
