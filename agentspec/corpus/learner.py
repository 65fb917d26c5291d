"""The learner: follows the logs of all tenants, and adds the outputs of other engines to the trees."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from agentspec.corpus.batch import Tombstone
from agentspec.corpus.batch_log import BatchLog
from agentspec.corpus.follower import Follower, FollowerParts, LearnedOutputs, SharedTrees
from agentspec.corpus.memory import OutputMemory
from agentspec.corpus.publisher import Publisher
from agentspec.corpus.threads import CpuShare, Worker
from agentspec.errors import CorpusError

logger = logging.getLogger("agentspec")

CPU_SHARE = 0.25
MOST_LAG_S = 10.0
JOIN_BYTES = 64 << 20
JOIN_S = 5.0
TENANTS_EVERY_S = 2.0
_WAIT_S = 1.0
_RETRY_S = 5.0


@dataclass(frozen=True, slots=True)
class LearnerFigures:
    """Counters of what was learned from other engines.

    Attributes:
        num_outputs: outputs learned, repetitions included.
        num_tokens: number of tokens of these outputs.
        lag_s: seconds since the learner knows of the oldest unread entry, for the tenant that lags most.
        num_missing: number of records that never arrived.
        num_dropped: number of records skipped because the learner lagged too much.
        num_damaged: number of unusable batches, of outputs with tokens outside the vocabulary, and of
            other values in the store that no engine wrote.
        num_failures: number of failed calls of the store.
        cpu_s: CPU seconds of the learner's thread.
    """

    num_outputs: int
    num_tokens: int
    lag_s: float
    num_missing: int
    num_dropped: int
    num_damaged: int
    num_failures: int
    cpu_s: float


class Learner:
    """Learns the outputs of other engines within a share of a core. Only its thread may call :meth:`step`.

    Args:
        log: the logs to follow.
        origin: 16 bytes that identify this process, whose own outputs are in the trees already.
        vocab_size: outputs with token ids from this number on are refused.
        trees: the trees that learn.
        memory: the outputs that the trees hold; shared with the publisher.
        publisher: withdraws erased outputs that are not sent yet.
        repeat: called with erasures that have to be published again (:class:`FollowerParts`).
        cpu_share: share of one core.
        most_lag_s: a follower that lags by more seconds skips to the newest entries.
        join_bytes: limit of the bytes of tokens to learn from a snapshot, and from the log before a skip.
        join_s: seconds after the start in which the CPU share is not limited.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        log: BatchLog,
        origin: bytes,
        vocab_size: int,
        trees: SharedTrees,
        memory: OutputMemory,
        publisher: Publisher,
        repeat: Callable[[str, Iterable[Tombstone], int], object],
        *,
        cpu_share: float = CPU_SHARE,
        most_lag_s: float = MOST_LAG_S,
        join_bytes: int = JOIN_BYTES,
        join_s: float = JOIN_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log = log
        self._publisher = publisher
        self._join_s = join_s
        self._clock = clock
        self._worker = Worker("learner", self._step_or_wait, begin=self._begin, retry_s=_RETRY_S)
        self._share = CpuShare(cpu_share, self._worker.closing.wait, clock)
        self._learned = LearnedOutputs(trees, memory, vocab_size, self._share)
        self._parts = FollowerParts(
            *(log, origin, self._learned, publisher, repeat, self._share),
            *(most_lag_s, join_bytes, join_s, clock),
        )
        self._followers: dict[str, Follower] = {}
        self._tenants_s = -TENANTS_EVERY_S
        self._knows_tenants = False
        self._joined = threading.Event()
        self._num_failures = 0
        self._failures: set[str] = set()  # types of the errors logged so far

    def start(self) -> None:
        """Start the thread."""
        self._worker.start()

    def close(self, timeout_s: float = 5.0) -> None:
        """End the thread."""
        self._worker.close(timeout_s)

    def wait_joined(self, timeout_s: float) -> bool:
        """Wait until the content of the store at the start is learned. Return False after the time-out."""
        return self._joined.wait(timeout_s)

    def step(self) -> bool:
        """Learn the next entries of every tenant. Return True if there may be more."""
        for tenant in self._publisher.take_erased():
            follower = self._followers.get(tenant) or Follower(tenant, self._parts)
            follower.begin_anew()
        self._find_tenants()
        has_more = False
        for follower in self._followers.values():
            if self._worker.closing.is_set() or self._clock() < follower.retry_s:
                continue
            try:
                has_more |= follower.follow()
            except Exception as error:  # the other tenants continue
                follower.retry_s = self._clock() + _RETRY_S
                self._failed(error)
        if self._knows_tenants and all(follower.has_joined for follower in self._followers.values()):
            self._joined.set()
        return has_more

    def figures(self) -> LearnerFigures:
        """Return the present figures."""
        followers = list(self._followers.values())
        num_dropped = sum(follower.num_dropped for follower in followers)
        num_damaged = self._learned.num_refused + self._log.store.num_foreign
        return LearnerFigures(
            num_outputs=self._learned.num_outputs,
            num_tokens=self._learned.num_tokens,
            lag_s=max((follower.lag_s for follower in followers), default=0.0),
            num_missing=max(0, sum(follower.num_missing for follower in followers) - num_dropped),
            num_dropped=num_dropped,
            num_damaged=num_damaged + sum(follower.num_damaged for follower in followers),
            num_failures=self._num_failures + sum(follower.num_failures for follower in followers),
            cpu_s=self._share.cpu_s,
        )

    def _find_tenants(self) -> None:
        self._add_tenants(self._publisher.tenants())
        if self._clock() < self._tenants_s + TENANTS_EVERY_S:
            return
        self._tenants_s = self._clock()
        try:
            self._add_tenants(self._log.tenants())
            self._knows_tenants = True
        except CorpusError as error:
            self._failed(error)

    def _add_tenants(self, tenants: Iterable[str]) -> None:
        new = {tenant: Follower(tenant, self._parts) for tenant in tenants if tenant not in self._followers}
        if new:
            self._followers = {**self._followers, **new}  # figures() may iterate over the old dict

    def _failed(self, error: Exception) -> None:
        """Count a failure. Log the first error of each type, with a stack trace if the type is unexpected."""
        kind = type(error).__name__
        if kind not in self._failures:
            is_known = isinstance(error, CorpusError)
            logger.warning("learning from other engines: %s", error, exc_info=None if is_known else error)
        self._failures.add(kind)
        self._num_failures += 1

    # ---- the thread ----

    def _begin(self) -> None:
        self._share.begin()
        self._share.free(self._join_s)

    def _step_or_wait(self) -> None:
        if not self.step():
            self._wait()

    def _wait(self) -> None:
        now_s = self._clock()
        cursors = {
            self._log.scope(tenant): follower.cursor
            for tenant, follower in self._followers.items()
            if follower.retry_s <= now_s
        }
        try:
            self._log.store.wait(cursors, _WAIT_S)
        except CorpusError as error:
            self._failed(error)
            self._worker.closing.wait(_WAIT_S)
        self._share.pause()
