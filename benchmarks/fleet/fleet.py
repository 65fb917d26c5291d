"""A simulated fleet: forests of the real core, and a corpus between them in a real store.

Publishers and learners run without their threads, in simulated time: each running call takes a decode step in
``STEP_S``.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from zlib import crc32

import numpy as np

from agentspec.config import MIB, DraftConfig, ForestConfig
from agentspec.corpus.batch import ORIGIN_BYTES, Output
from agentspec.corpus.batch_log import BatchLog
from agentspec.corpus.learner import Learner
from agentspec.corpus.memory import OutputMemory
from agentspec.corpus.publisher import Publisher
from agentspec.corpus.sqlite_store import SqliteStore
from agentspec.draft import Draft
from agentspec.forest import Forest, Tokens
from agentspec.forest.sessions import session_hash
from agentspec.gateway.settings import RoutingSettings
from agentspec.gateway.upstreams.routing import choose
from agentspec.replay.calls import Call
from agentspec.replay.drafter import TENANT
from agentspec.replay.methods import LEARNED_SOURCES
from agentspec.stages import StageKey
from benchmarks.fleet.recorded import VOCAB_SIZE, VOCABULARY, stage_key

STEP_S = 0.02
DRAFT = DraftConfig(rule="learned")
GATEWAY = "by gateway"
_MEMORY_BYTES = 64 * MIB
_NO_LIMIT = 1e9


@dataclass(frozen=True, slots=True)
class Sharing:
    """How replicas share.

    Attributes:
        window_s: time between two batches of a replica; None = the store's.
    """

    window_s: float | None = None


def forest() -> Forest:
    """Return an empty forest as the learned rule uses it."""
    return Forest(ForestConfig(sources=LEARNED_SOURCES))


def forests(number: int) -> list[Forest]:
    """Return empty forests."""
    return [forest() for _ in range(number)]


class Replica:
    """An engine: its forest, and what it shares through a log. Without a log it is a silo.

    Attributes:
        name: by which a gateway knows it.
        weight: its share of the load.
        num_running: calls in flight.
    """

    def __init__(
        self, number: int, trees: Forest, log: BatchLog | None, sharing: Sharing, clock: Callable[[], float]
    ) -> None:
        self.name = f"engine-{number}"
        self.weight = 1.0
        self.num_running = 0
        self.forest = trees
        self.publisher: Publisher | None = None
        self.learner: Learner | None = None
        if log is None:
            return
        origin = number.to_bytes(ORIGIN_BYTES, "little")
        memory = OutputMemory(_MEMORY_BYTES)
        self.publisher = Publisher(log, origin, memory, window_s=sharing.window_s, clock=clock)
        self.publisher.enter_epoch(TENANT, 0)
        self.learner = Learner(
            log,
            origin,
            VOCAB_SIZE,
            self.forest,
            memory,
            self.publisher,
            lambda *_: None,
            cpu_share=_NO_LIMIT,
            most_lag_s=_NO_LIMIT,
            clock=clock,
        )
        self.learner.step()

    @property
    def num_bytes(self) -> int:
        """Bytes sent to the store."""
        return self.publisher.figures().num_bytes if self.publisher else 0

    def pump(self, *, is_last: bool = False) -> None:
        """Send what is due."""
        if self.publisher:
            self.publisher.pump(is_last=is_last)

    def learn(self) -> None:
        """Learn all that the store holds."""
        while self.learner and self.learner.step():
            pass

    def start(self, name: str, key: StageKey, call: Call) -> None:
        """Start a call."""
        self.num_running += 1
        self.forest.start(name, key, call.prompt, session=call.session, draft=DRAFT)

    def finish(self, name: str) -> None:
        """End a call."""
        self.num_running -= 1
        self.forest.finish(name)


Deal = Callable[[Call, Sequence[Replica]], Replica]  # chooses a call's replica


def in_turn() -> Deal:
    """Deal calls to replicas in turn."""
    numbers = itertools.count()
    return lambda _, replicas: replicas[next(numbers) % len(replicas)]


def by_session() -> Deal:
    """Deal sessions to replicas in turn."""
    numbers = itertools.count()
    dealt: dict[str, int] = {}
    return lambda call, replicas: replicas[
        (dealt[call.session] if call.session in dealt else dealt.setdefault(call.session, next(numbers)))
        % len(replicas)
    ]


def by_stage() -> Deal:
    """Deal stages to replicas by their hash."""
    return lambda call, replicas: replicas[crc32(call.stage.encode()) % len(replicas)]


def by_gateway() -> Deal:
    """Deal calls as our gateway does: a stage stays with a replica while that is not busier than others."""
    spill = RoutingSettings().spill
    return lambda call, replicas: choose(replicas, call.stage, spill)


DEALS: Mapping[str, Callable[[], Deal]] = {
    "in turn": in_turn,
    "by session": by_session,
    "by stage": by_stage,
    GATEWAY: by_gateway,
}


@dataclass(slots=True)
class _Live:
    """A running call."""

    call: Call
    replica: Replica
    output: list[int] = field(default_factory=list)

    def publish(self, key: StageKey) -> None:
        """Publish it."""
        if self.replica.publisher is not None:
            session = session_hash(key.tenant, self.call.session)
            tokens = np.array(self.output, np.int32)
            self.replica.publisher.publish(Output(key, tokens, session=session))


class Fleet:
    """A drafter (:mod:`agentspec.replay.drafter`) that deals each call to one of some replicas.

    Args:
        name: of the set of calls.
        forests: of the replicas.
        deal: chooses a call's replica.
        log: what they share; None = nothing.
        sharing: how they share.
    """

    def __init__(
        self,
        name: str,
        forests: Sequence[Forest],
        deal: Deal,
        log: BatchLog | None = None,
        sharing: Sharing | None = None,
    ) -> None:
        self._name = name
        self._now_s = self._synced_s = 0.0
        self._num_bytes = 0
        self._deal = deal
        self._sharing = sharing or Sharing()
        self._live: dict[str, _Live] = {}
        self.replicas = [
            Replica(number, trees, log, self._sharing, lambda: self._now_s)
            for number, trees in enumerate(forests)
        ]

    def start(self, name: str, call: Call) -> None:
        """Start a call in its replica."""
        replica, key = self._deal(call, self.replicas), stage_key(self._name, call.stage)
        self._live[name] = _Live(call, replica)
        replica.start(name, key, call)

    def step(self, name: str, accepted: Tokens) -> Draft:
        """Take a decode step of a call."""
        self._pass_time()
        live = self._live[name]
        live.output += accepted.tolist()
        return live.replica.forest.step([(name, accepted)], DRAFT.max_tokens)[0]

    def finish(self, name: str, accepted: Tokens) -> None:
        """End a call and publish its output."""
        live = self._live.pop(name)
        live.output += accepted.tolist()
        live.replica.forest.observe(name, accepted)
        live.replica.finish(name)
        live.publish(stage_key(self._name, live.call.stage))

    def flush(self) -> None:
        """Send all that waits."""
        for replica in self.replicas:
            replica.pump(is_last=True)

    def _pass_time(self) -> None:
        self._now_s += STEP_S / max(len(self._live), 1)
        if self._now_s < self._synced_s + STEP_S:
            return
        self._synced_s = self._now_s
        for replica in self.replicas:
            replica.pump()
        num_bytes = sum(replica.num_bytes for replica in self.replicas)
        if num_bytes > self._num_bytes:
            self._num_bytes = num_bytes
            for replica in self.replicas:
                replica.learn()


@contextmanager
def shared_log() -> Iterator[BatchLog]:
    """Yield a log in an empty SQLite store."""
    with tempfile.TemporaryDirectory() as folder:
        store = SqliteStore(Path(folder))
        try:
            yield BatchLog(store, VOCABULARY)
        finally:
            store.close()
