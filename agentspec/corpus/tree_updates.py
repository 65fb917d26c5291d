"""What a learner does to the trees and to the memory of what they hold."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from typing import Protocol

from agentspec.corpus.batch import Count, ModelUpdate, Part, Record
from agentspec.corpus.cpu_share import CpuShare
from agentspec.corpus.erasure import PLACEHOLDER
from agentspec.corpus.followed import FollowedOutputs, FollowingTrees
from agentspec.corpus.memory import OutputMemory
from agentspec.corpus.output import Output, Tokens
from agentspec.draft import Origin
from agentspec.errors import ConfigError
from agentspec.stages import StageKey

logger = logging.getLogger("agentspec")


class SharedTrees(FollowingTrees, Protocol):
    """The trees that learn from other engines. Safe to call beside decode steps."""

    def learn(
        self,
        stage: StageKey,
        token_ids: Tokens,
        uses: int = 1,
        origin: Origin = Origin.LOCAL,
        session: bytes = b"",
    ) -> None:
        """Add an output that occurred ``uses`` times, also to the tree of its session."""

    def forget(self, stage: StageKey, token_ids: Tokens) -> None:
        """Remove an output and its equals from all trees that may hold it."""

    def merge_model(self, stage: StageKey, update: bytes) -> None:
        """Add to a stage's model what another engine's has learned. Raises ConfigError if it is damaged."""

    def evict_tenant(self, tenant: str) -> None:
        """Empty all shared trees of a tenant."""


class TreeUpdates:
    """Adds outputs to the trees and removes them, within a CPU share. Counts them.

    Args:
        trees: what learns.
        memory: of the outputs that the trees hold and other engines know.
        vocab_size: tokens from it on are refused.
        share: of one core.
        clock: monotonic seconds.

    Attributes:
        num_outputs: outputs learned, repetitions included.
        num_tokens: their tokens.
        num_refused: outputs with tokens outside the vocabulary, and damaged updates of models.
        num_unknown: counts of outputs that are not remembered.
        num_merged: updates of models learned.
        followed: outputs that other engines are writing.
        when_evicted: called with a tenant whose trees were emptied.
    """

    def __init__(
        self,
        trees: SharedTrees,
        memory: OutputMemory,
        vocab_size: int,
        share: CpuShare,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._trees = trees
        self._memory = memory
        self._vocab_size = vocab_size
        self._share = share
        self.followed = FollowedOutputs(trees, vocab_size, clock)
        self.when_evicted: Callable[[str], object] = lambda tenant: None
        self.num_outputs = self.num_tokens = self.num_refused = self.num_unknown = self.num_merged = 0

    def learn_record(self, tenant: str, origin: bytes, record: Record) -> None:
        """Learn an output, or a known one again if the record is a count of it, or follow one."""
        if isinstance(record, Part):
            self.followed.take(tenant, origin, record)
            self._share.pause()
        elif isinstance(record, ModelUpdate):
            self._merge(StageKey(tenant, record.path), record.update)
        elif isinstance(record, Output):
            self.learn(record, record.uses, Origin.FLEET, record.session)
        elif isinstance(record, Count) and record != PLACEHOLDER:
            output = self._memory.get(tenant, record.digest)
            if output is None:
                self.num_unknown += 1
            else:
                self.learn(output, record.uses, Origin.FLEET)

    def learn(self, output: Output, uses: int, origin: Origin, session: bytes = b"") -> None:
        """Learn an output that occurred ``uses`` times, as one of a session if there is one."""
        if int(output.tokens.max()) >= self._vocab_size:
            self.num_refused += 1
            return
        self._memory.add(output)  # first: an erasure must find what the trees hold
        self._trees.learn(output.stage, output.tokens, uses, origin, session)
        self.num_outputs += 1
        self.num_tokens += len(output.tokens)
        self._share.pause()

    def _merge(self, stage: StageKey, update: bytes) -> None:
        try:
            self._trees.merge_model(stage, update)
            self.num_merged += 1
        except ConfigError as error:
            logger.warning("an update of the model of %s is not used: %s", stage, error)
            self.num_refused += 1
        self._share.pause()

    def forget(self, tenant: str, outputs: Iterable[Output], digests: Iterable[bytes]) -> None:
        """Remove outputs from the trees, and all with these digests from the memory."""
        self.followed.drop_tenant(tenant)
        for output in {output.digest: output for output in outputs}.values():
            self._trees.forget(output.stage, output.tokens)
            self._share.pause()
        self._memory.forget(tenant, digests)

    def evict_tenant(self, tenant: str) -> None:
        """Empty the trees of a tenant, and forget what they held."""
        self.followed.drop_tenant(tenant)
        self._memory.forget_tenant(tenant)  # first: what is remembered from now on, the trees may hold
        self._trees.evict_tenant(tenant)
        self.when_evicted(tenant)
