"""Our side: the native index, and the public forest."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from agentspec import DraftConfig, Forest, ForestConfig, Source, StageKey
from agentspec._native import SuffixIndex
from benchmarks.core.sides import DEPTH, FACTOR, MAX_DRAFT, MIN_PROB, Batch, Draft, Tokens

UNLIMITED_BYTES = 1 << 40
EVERY_SOURCE = (Source.SESSION, Source.STAGE, Source.WORKFLOW, Source.TENANT)
REQUESTS_PER_SESSION = 4


class OurIndex:
    """One native suffix index."""

    def __init__(self) -> None:
        self._index = SuffixIndex(DEPTH + 1)  # counts the continuations of contexts of DEPTH tokens

    def add(self, document: Tokens) -> None:
        """Add a whole document."""
        number = self._index.open_sequence()
        self._index.append(number, document)
        self._index.close_sequence(number)

    def evict(self, num_tokens: int) -> int:
        """Evict the oldest documents, at least ``num_tokens`` tokens or all; return the number evicted."""
        return self._index.evict(num_tokens)


class OurDecoder:
    """A forest with one stage; by default it has the peer's trees: one per request and one of outputs."""

    def __init__(
        self, threads: int = 1, sources: tuple[Source, ...] = (Source.STAGE,), rule: str = "paper"
    ) -> None:
        config = ForestConfig(
            depth=DEPTH,
            sources=sources,
            threads=threads,
            stage_limit_bytes=UNLIMITED_BYTES,
            session_limit_bytes=UNLIMITED_BYTES,
            tenant_limit_bytes=UNLIMITED_BYTES,
            total_limit_bytes=UNLIMITED_BYTES,
        )
        self._forest = Forest(config)
        self._stage = StageKey("benchmark", ("workflow", "stage"))
        self._draft = DraftConfig(max_tokens=MAX_DRAFT, alpha=FACTOR, min_prob=MIN_PROB, rule=rule)
        self._num_started = itertools.count()

    def learn(self, output: Tokens) -> None:
        """Add a past output to the stage's tree."""
        self._forest.learn(self._stage, output)

    def start(self, request: str, prompt: Tokens, *, wait: bool = True) -> None:
        """Admit a request; without ``wait`` its prompt is indexed in the background."""
        session = f"session-{next(self._num_started) // REQUESTS_PER_SESSION}"
        self._forest.start(request, self._stage, prompt, session=session, draft=self._draft, wait=wait)

    def wait(self, request: str) -> None:
        """Wait until the request's prompt is indexed."""
        self._forest.wait(request)

    def step(self, batch: Batch) -> Sequence[Draft]:
        """Take the accepted tokens, then draft for each request."""
        return self._forest.step(batch.updates, MAX_DRAFT)

    def finish(self, request: str) -> None:
        """Forget a request and its output."""
        self._forest.finish(request, learn=False)


class OurDecoderTwoThreads(OurDecoder):
    """The same with two threads that share a step's requests."""

    def __init__(self) -> None:
        super().__init__(threads=2)


class OurDecoderEverySource(OurDecoder):
    """The same with the session's, the workflow's and the tenant's trees, the forest's default."""

    def __init__(self) -> None:
        super().__init__(sources=EVERY_SOURCE)


class OurDecoderLearned(OurDecoder):
    """The same with the learned rule, which has no factor and also learns from every step."""

    def __init__(self) -> None:
        super().__init__(rule="learned")
