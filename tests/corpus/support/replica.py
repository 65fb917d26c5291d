"""One engine process of a fleet, without threads and with a clock of the test."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from agentspec import Forest
from agentspec.corpus.batch import Batch, ForgetStage, ForgetSubject, Output
from agentspec.corpus.batch_log import BatchLog
from agentspec.corpus.keeper import SnapshotKeeper
from agentspec.corpus.learner import Learner
from agentspec.corpus.memory import OutputMemory
from agentspec.corpus.publisher import Publisher
from agentspec.draft import Origin
from agentspec.stages import StageKey

VOCABULARY = "test"
VOCAB_SIZE = 100
NO_LIMIT = 1e9


@dataclass
class Clock:
    now_s: float = 1000.0

    def __call__(self) -> float:
        return self.now_s


def output(
    tokens: Any, stage: str = "plan", tenant: str = "acme", subject: bytes = b"", **more: Any
) -> Output:
    return Output(StageKey.parse(stage, tenant), np.array(tokens, np.int32), subject, **more)


@dataclass
class NotedTrees:
    """Trees that only note what they hold."""

    held: Counter = field(default_factory=Counter)  # uses by tenant, stage and tokens
    evicted: list[str] = field(default_factory=list)
    origins: Counter = field(default_factory=Counter)  # of the calls
    sessions: list[tuple[bytes, Any]] = field(default_factory=list)  # hash and tokens
    models_forgotten: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)  # tenant and path

    def learn(
        self,
        stage: StageKey,
        token_ids: np.ndarray,
        uses: int = 1,
        origin: Origin = Origin.LOCAL,
        session: bytes = b"",
    ) -> None:
        if session:
            self.sessions.append((session, token_ids.tolist()))
        self.held[stage.tenant, stage.name, tuple(token_ids.tolist())] += uses
        self.origins[origin] += 1

    def forget(self, stage: StageKey, token_ids: np.ndarray) -> None:
        self.held.pop((stage.tenant, stage.name, tuple(token_ids.tolist())), None)

    def learn_nothing_personal(self) -> None:
        pass

    def forget_models(self, tenant: str, path: tuple[str, ...]) -> None:
        self.models_forgotten.append((tenant, path))

    def evict_tenant(self, tenant: str) -> None:
        self.evicted.append(tenant)
        self.held = Counter({key: uses for key, uses in self.held.items() if key[0] != tenant})


class Replica:
    """Publisher, learner and keeper around the same memory. ``sync`` does all that their threads would do."""

    def __init__(
        self,
        store: Any,
        name: str = "a",
        trees: Any = None,
        clock: Clock | None = None,
        *,
        joined: Iterable[str] = ("acme", "globex"),
        memory_bytes: int = 1 << 20,
        keys: Any = None,
        publisher: dict[str, Any] | None = None,
        learner: dict[str, Any] | None = None,
        keeper: dict[str, Any] | None = None,
    ) -> None:
        self.clock = clock or Clock()
        self.origin = name.encode().ljust(16, b".")
        self.log = BatchLog(store, VOCABULARY, keys)
        self.trees = NotedTrees() if trees is None else trees
        self.memory = OutputMemory(memory_bytes)
        self.publisher = Publisher(
            self.log,
            self.origin,
            self.memory,
            clock=self.clock,
            **(publisher or {}),
        )
        for tenant in joined:  # as if the learner had begun to follow it
            self.publisher.enter_epoch(tenant, self.log.marks(tenant).epoch)
        self.keeper = SnapshotKeeper(
            self.log,
            self.publisher,
            name,
            cpu_share=NO_LIMIT,
            clock=self.clock,
            spread=lambda: 1.0,
            most_age_s=1e12,
            **(keeper or {}),
        )
        self.learner = Learner(
            self.log,
            self.origin,
            VOCAB_SIZE,
            self.trees,
            self.memory,
            self.publisher,
            self.keeper.repeat,
            **{"cpu_share": NO_LIMIT, "clock": self.clock, **(learner or {})},
        )

    def finish(self, finished: Output) -> None:
        """An own request has ended: the trees have learned its output already."""
        self.trees.learn(finished.stage, finished.tokens)
        self.publisher.publish(finished)

    def pump(self, seconds: float = 1.0) -> None:
        """Send what is due after some time."""
        self.clock.now_s += seconds
        self.publisher.pump()

    def learn(self) -> None:
        """Learn all there is."""
        self.clock.now_s += 6.0  # epochs and tenants are looked at again
        while self.learner.step():
            pass

    def sync(self) -> None:
        self.pump()
        self.learn()
        self.keeper.step()

    def forget_stage(self, stage: str, tenant: str = "acme") -> None:
        self.keeper.erase(tenant, ForgetStage(tuple(stage.split("/"))))

    def forget_subject(self, subject: bytes, tenant: str = "acme") -> None:
        self.keeper.erase(tenant, ForgetSubject(subject))

    def forget_tenant(self, tenant: str) -> None:
        self.log.store.erase(self.log.scope(tenant))
        self.publisher.enter_epoch(tenant, self.log.marks(tenant).epoch)

    def held(self, tenant: str = "acme") -> dict[tuple[str, tuple[int, ...]], int]:
        """Uses by stage and tokens."""
        return {key[1:]: uses for key, uses in self.trees.held.items() if key[0] == tenant}


def stored(log: BatchLog, tenant: str) -> list[Batch]:
    """All batches of a tenant's snapshot and log."""
    snapshot = log.snapshot(tenant)
    batches = list(snapshot.batches) if snapshot else []
    batches += [logged.batch for logged in log.read(tenant, "", 1 << 30)]
    return [batch for batch in batches if batch is not None]


def tree_outputs(forest: Forest) -> dict[tuple[str, tuple[str, ...] | None], list[tuple[int, ...]]]:
    """The outputs that each shared tree of a forest holds, by tenant and path (None: of sessions)."""
    registry, core = forest._trees, forest._core
    trees = registry.trees()
    for tenant in {tenant for (tenant, _), _ in trees}:
        trees += [((tenant, None), index) for index in registry._sessions.indices(tenant)]
    found: dict[Any, list[tuple[int, ...]]] = {}
    for name, index in trees:
        held = found.setdefault(name, [])
        tokens, sizes, _ = core.read_outputs(index, True)
        while len(sizes):
            ends = np.cumsum(sizes)
            held += [tuple(tokens[end - size : end].tolist()) for end, size in zip(ends, sizes, strict=True)]
            tokens, sizes, _ = core.read_outputs(index, False)
    for tenant in {tenant for tenant, _ in registry._pasts._pasts}:  # of sessions without a tree
        outputs = registry._pasts.outputs(tenant)
        found.setdefault((tenant, None), []).extend(tuple(tokens.tolist()) for tokens in outputs)
    return found
