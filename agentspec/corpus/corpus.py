"""The corpus of one engine process: its store, and the threads that publish, learn and write snapshots."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from agentspec.config import MIB, check_int, check_positive
from agentspec.corpus.batch import (
    MOST_OUTPUT_TOKENS,
    ORIGIN_BYTES,
    ForgetStage,
    ForgetSubject,
    Output,
    Tokens,
    Tombstone,
)
from agentspec.corpus.batch_log import BatchLog
from agentspec.corpus.encryption import KeyRing, operator_key
from agentspec.corpus.follower import SharedTrees
from agentspec.corpus.keeper import SnapshotKeeper
from agentspec.corpus.learner import Learner, LearnerFigures
from agentspec.corpus.memory import OutputMemory
from agentspec.corpus.publisher import Publisher, PublisherFigures
from agentspec.corpus.settings import KEY_VARIABLE, check_corpus, is_redis, sharing, without_password
from agentspec.corpus.store import CorpusStore, open_store
from agentspec.stages import StageKey

logger = logging.getLogger("agentspec")

_MOST_BYTES = 1 << 40


@dataclass(frozen=True, slots=True)
class CorpusConfig:
    """Limits on what an engine shares and learns.

    Attributes:
        cpu_share: share of one core that the learner may use.
        most_lag_s: a learner that lags by more seconds skips to the newest outputs.
        join_bytes: limit of the bytes of tokens that a new engine learns from a snapshot.
        join_s: seconds after the start in which the learner may use a whole core.
        memory_bytes: limit of the bytes of remembered outputs, which erasures remove one by one.
        queue_bytes: limit of the bytes of finished outputs in the publisher's queue.
        snapshot_bytes: limit of the bytes of tokens in a tenant's snapshot.
        snapshot_every_s: seconds between two snapshots of a tenant.
        most_age_s: a snapshot leaves out outputs that were not used for longer.

    Raises:
        ConfigError: a value is not positive.
    """

    cpu_share: float = 0.25
    most_lag_s: float = 10.0
    join_bytes: int = 64 * MIB
    join_s: float = 5.0
    memory_bytes: int = 64 * MIB
    queue_bytes: int = 16 * MIB
    snapshot_bytes: int = 64 * MIB
    snapshot_every_s: float = 300.0
    most_age_s: float = 7 * 86400.0

    def __post_init__(self) -> None:
        for name in ("join_bytes", "memory_bytes", "queue_bytes", "snapshot_bytes"):
            check_int(name, getattr(self, name), 1, _MOST_BYTES)
        for name in ("cpu_share", "most_lag_s", "join_s", "snapshot_every_s", "most_age_s"):
            check_positive(name, getattr(self, name))


@dataclass(frozen=True, slots=True)
class CorpusFigures:
    """Counters of what this engine has shared and learned since its start.

    Attributes:
        publisher: counters of this engine's outputs.
        learner: counters of other engines' outputs.
        num_snapshots: number of snapshots written.
        num_snapshot_failures: number of failed attempts.
        memory_bytes: bytes of remembered outputs.
    """

    publisher: PublisherFigures
    learner: LearnerFigures
    num_snapshots: int
    num_snapshot_failures: int
    memory_bytes: int

    def describe(self) -> dict[str, float]:
        """Return all figures in one flat dict. ``num_store_failures`` is the sum of all failed calls."""
        publisher, learner = self.publisher, self.learner
        return {
            "num_published": publisher.num_published,
            "num_skipped": publisher.num_skipped,
            "num_dropped": publisher.num_dropped,
            "num_published_bytes": publisher.num_bytes,
            "num_learned": learner.num_outputs,
            "num_learned_tokens": learner.num_tokens,
            "num_dropped_records": learner.num_dropped,
            "num_missing_records": learner.num_missing,
            "num_damaged": learner.num_damaged,
            "learning_cpu_s": learner.cpu_s,
            "lag_s": learner.lag_s,
            "num_snapshots": self.num_snapshots,
            "num_store_failures": publisher.num_failures + learner.num_failures + self.num_snapshot_failures,
            "memory_bytes": self.memory_bytes,
        }


class Corpus:
    """Shares outputs with other engines, and learns theirs. Thread-safe.

    The store is a cache. While the store is unreachable, requests get fewer drafts and the same answers.

    Args:
        store: the corpus closes it.
        vocabulary: fingerprint of the tokenizer.
        vocab_size: token ids from this number on are refused.
        trees: the trees that learn other engines' outputs.
        keys: the tenants' data keys; None = batches are not encrypted.
        config: limits.
        is_shared: returns True if other engines get the outputs of the stage with this path.
    """

    def __init__(
        self,
        store: CorpusStore,
        vocabulary: str,
        vocab_size: int,
        trees: SharedTrees,
        *,
        keys: KeyRing | None = None,
        config: CorpusConfig | None = None,
        is_shared: Callable[[tuple[str, ...]], bool] = lambda path: True,
    ) -> None:
        config = config or CorpusConfig()
        self.origin = os.urandom(ORIGIN_BYTES)
        self._store = store
        self._log = BatchLog(store, vocabulary, keys)
        self._memory = OutputMemory(config.memory_bytes)
        trees.learn_nothing_personal()  # one person's part of a trained model can't be erased
        self._publisher = Publisher(
            self._log,
            self.origin,
            self._memory,
            queue_bytes=config.queue_bytes,
            is_shared=is_shared,
        )
        self._put = self._publisher.queue.put  # bound method: saves a call on the path of an answer
        self._keeper = SnapshotKeeper(
            self._log,
            self._publisher,
            self.origin.hex(),
            every_s=config.snapshot_every_s,
            most_bytes=config.snapshot_bytes,
            most_age_s=config.most_age_s,
        )
        self._learner = Learner(
            self._log,
            self.origin,
            vocab_size,
            trees,
            self._memory,
            self._publisher,
            self._keeper.repeat,
            cpu_share=config.cpu_share,
            most_lag_s=config.most_lag_s,
            join_bytes=config.join_bytes,
            join_s=config.join_s,
        )

    def start(self) -> None:
        """Start the threads. The engine can serve requests while they learn."""
        self._publisher.start()
        self._learner.start()
        self._keeper.start()

    def wait_joined(self, timeout_s: float) -> bool:
        """Wait until this engine has learned what the store held at the start.

        Args:
            timeout_s: longest wait, in seconds.

        Returns:
            False if the time-out ended the wait, for example because the store can't be read.
        """
        return self._learner.wait_joined(timeout_s)

    def close(self, timeout_s: float = 5.0) -> None:
        """Send the outputs that wait, within the time-out, and close the store."""
        end_s = time.monotonic() + timeout_s
        for part in (
            self._publisher,
            self._learner,
            self._keeper,
        ):  # the keeper is last: the other threads hand erasures to it
            part.close(max(0.0, end_s - time.monotonic()))
        self._store.close()

    def share(
        self,
        stage: StageKey,
        token_ids: Tokens | Sequence[int],
        *,
        subject: bytes = b"",
        session: str | None = None,
    ) -> None:
        """Publish the part of a finished output that this engine's trees have learned. Never raises.

        Args:
            stage: key of the stage in the forest.
            token_ids: int32 ``[n]`` or a sequence of integers. The caller must not change it later.
            subject: hash of the person that the output may be about, at most 32 bytes.
            session: the output's session. Engines that continue the session add the output to its tree.
        """
        if 1 <= len(token_ids) <= MOST_OUTPUT_TOKENS:
            of = b"" if session is None else session  # the publisher's thread hashes the name
            self._put((stage, token_ids, subject, time.time(), of))
        elif len(token_ids):
            self._memory.note(stage, subject)  # so that an erasure empties the trees

    def publish(self, output: Output) -> None:
        """Queue a finished output that this engine's trees have learned. Takes microseconds and never raises.

        Args:
            output: the caller must not change its tokens later.
        """
        self._publisher.publish(output)

    def figures(self) -> CorpusFigures:
        """Return the present figures."""
        return CorpusFigures(
            self._publisher.figures(),
            self._learner.figures(),
            self._keeper.num_written,
            self._keeper.num_failures,
            self._memory.num_bytes,
        )

    # ---- erasure: immediately in the store, and in the trees of each engine when it reads the log ----

    def forget(self, tenant: str, tombstone: Tombstone | None) -> None:
        """Erase the outputs that a tombstone names; without one, the whole tenant.

        Raises:
            CorpusError: the store failed. Some outputs may be erased already: call again.
        """
        if tombstone is None:
            self.forget_tenant(tenant)
        else:
            self._keeper.erase(tenant, tombstone)

    def forget_stage(self, stage: StageKey) -> None:
        """Erase the outputs of a stage and of all stages below it.

        Raises:
            CorpusError: the store failed. Some outputs may be erased already: call again.
        """
        self.forget(stage.tenant, ForgetStage(stage.path))

    def forget_subject(self, tenant: str, subject: bytes) -> None:
        """Erase the outputs that contain one person's data. Equal outputs of other people stay in the store.

        Raises:
            ConfigError: the subject does not have 1 to 32 bytes.
            CorpusError: the store failed. Some outputs may be erased already: call again.
        """
        self.forget(tenant, ForgetSubject(subject))

    def forget_tenant(self, tenant: str) -> None:
        """Erase all outputs of a tenant, and its data key.

        Raises:
            CorpusError: the store failed. Some outputs may be erased already: call again.
        """
        self._store.erase(self._log.scope(tenant))
        self._publisher.enter_epoch(tenant, self._log.marks(tenant).epoch)


def open_corpus(
    location: str,
    vocabulary: str,
    vocab_size: int,
    trees: SharedTrees,
    stages: Mapping[tuple[str, ...], str] | None = None,
) -> Corpus:
    """Return a corpus, with threads that are not started. ``$AGENTSPEC_CORPUS_KEY`` encrypts it.

    Args:
        location: a folder or a URL, as in :func:`open_store`.
        vocabulary: fingerprint of the tokenizer.
        vocab_size: size of the model's vocabulary.
        trees: the trees that learn other engines' outputs.
        stages: ``none`` or ``fleet`` for each named stage (:func:`agentspec.corpus.settings.reaches`).

    Raises:
        ConfigError: see :func:`agentspec.corpus.settings.check_corpus`.
        CorpusError: the folder can't be used.
    """
    check_corpus(location)
    is_encrypted = bool(os.environ.get(KEY_VARIABLE))
    if is_redis(location) and not is_encrypted:
        logger.warning(
            "outputs are readable to everybody who can read %s: set $%s to encrypt them",
            *(without_password(location), KEY_VARIABLE),
        )
    store = open_store(location)
    keys = KeyRing(store, operator_key()) if is_encrypted else None
    return Corpus(store, vocabulary, vocab_size, trees, keys=keys, is_shared=sharing(stages or {}))
