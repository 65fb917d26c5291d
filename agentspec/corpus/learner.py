"""The learner: follows the logs of all tenants, and adds the outputs of other engines to the trees."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Protocol

from agentspec.corpus.batch import Batch, Count, ForgetStage, ForgetSubject, Record
from agentspec.corpus.batch_log import BatchLog
from agentspec.corpus.cpu_share import CpuShare
from agentspec.corpus.erasure import PLACEHOLDER, Erasure, Tombstone
from agentspec.corpus.join import RecordId, Tombstones, join
from agentspec.corpus.memory import OutputMemory
from agentspec.corpus.output import Output, Tokens
from agentspec.corpus.publisher import Publisher
from agentspec.corpus.seen import SeenNumbers
from agentspec.corpus.snapshots import LEASE_S
from agentspec.corpus.store import START, Cursor
from agentspec.corpus.worker import Worker
from agentspec.errors import CorpusError
from agentspec.stages import StageKey

logger = logging.getLogger("agentspec")

CPU_SHARE = 0.25
MOST_LAG_S = 10.0
JOIN_BYTES = 64 << 20
JOIN_S = 5.0
TENANTS_EVERY_S = 2.0
_READ_BYTES = 1 << 20
_TOKEN_BYTES = 4
_JOIN_PIECE = 64  # outputs
_WAIT_S = 1.0
_RETRY_S = 5.0
_REPEAT_S = 60.0  # an equal tombstone within this time is the same erasure, repeated
_MOST_ORIGINS = 4096
_MOST_ERASURES = 1024


class SharedTrees(Protocol):
    """The trees that learn from other engines. Safe to call beside decode steps."""

    def learn(self, stage: StageKey, token_ids: Tokens, uses: int = 1) -> None:
        """Add an output that occurred ``uses`` times."""

    def forget(self, stage: StageKey, token_ids: Tokens) -> None:
        """Remove an output and its equals from all trees that may hold it."""

    def evict_tenant(self, tenant: str) -> None:
        """Empty all shared trees of a tenant."""


@dataclass(frozen=True, slots=True)
class LearnerFigures:
    """What was learned from other engines.

    Attributes:
        num_outputs: outputs learned, repetitions included.
        num_tokens: their tokens.
        lag_s: how long the oldest entry not read yet has been known, of the tenant furthest behind.
        num_missing: records that never arrived.
        num_dropped: records skipped because the learner was too far behind.
        num_damaged: batches that can't be used, and outputs with tokens outside the vocabulary.
        num_unknown: counts of outputs that are not remembered.
        num_failures: failed calls of the store.
        cpu_s: CPU seconds of the thread.
    """

    num_outputs: int
    num_tokens: int
    lag_s: float
    num_missing: int
    num_dropped: int
    num_damaged: int
    num_unknown: int
    num_failures: int
    cpu_s: float


@dataclass(slots=True)
class _Followed:
    """One tenant's log, and what was applied of it since its trees were empty."""

    cursor: Cursor = START
    epoch: int = -1
    joining: Iterator[Output] | None = None  # outputs of the snapshot, still to be learned
    has_to_join: bool = True
    own_from: int = 0  # own records from here on are in the trees already
    seen: OrderedDict[bytes, SeenNumbers] = field(default_factory=OrderedDict)
    skipped: set[bytes] = field(default_factory=set)  # origins: their next gap was skipped on purpose
    look_up_s: list[float] = field(default_factory=list)  # when to look for tombstones in the snapshot
    end: Cursor | None = None  # the newest entry when the learner fell behind
    behind_since_s: float = 0.0
    erasures: OrderedDict[RecordId, Erasure] = field(default_factory=OrderedDict)  # met in the log
    looked_up: set[RecordId] = field(default_factory=set)  # met in a snapshot
    awaited: set[RecordId] = field(default_factory=set)  # to be met again, after an erasure began anew
    join_end: Cursor | None = None  # the newest entry at the time of joining, until it is read
    tokens_before: int = 0  # learned by all before joining
    stale: list[_Stale] = field(default_factory=list)
    retry_s: float = 0.0
    epoch_s: float = 0.0


@dataclass(frozen=True, slots=True)
class _Stale:
    """Own records below a number are older than an erasure, wherever they stand in the log."""

    erasure: Erasure
    below: int
    met_s: float


class Learner:
    """Learns the outputs of other engines within a share of a core. Its thread owns all but the figures.

    Args:
        log: what to follow.
        origin: 16 bytes that name this process: its own outputs are in the trees already.
        vocab_size: tokens from it on are refused.
        trees: what learns.
        memory: outputs that other engines know; shared with the publisher.
        publisher: takes back what is erased.
        repeat: called with an erasure that this process has to repeat: some of its records came too late.
        cpu_share: share of one core.
        most_lag_s: a learner further behind skips to the newest entries.
        join_bytes: most bytes of tokens to learn from a snapshot, and from the log before it is skipped.
        join_s: time after a start without the limit of the CPU share.
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
        repeat: Callable[[str, Erasure], object],
        *,
        cpu_share: float = CPU_SHARE,
        most_lag_s: float = MOST_LAG_S,
        join_bytes: int = JOIN_BYTES,
        join_s: float = JOIN_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log = log
        self._origin = origin
        self._vocab_size = vocab_size
        self._trees = trees
        self._memory = memory
        self._publisher = publisher
        self._repeat = repeat
        self._most_lag_s = most_lag_s
        self._join_bytes = join_bytes
        self._join_s = join_s
        self._clock = clock
        self._worker = Worker("learner", self._step_or_wait, begin=self._begin, retry_s=_RETRY_S)
        self._share = CpuShare(cpu_share, self._worker.closing.wait, clock)
        self._followed: dict[str, _Followed] = {}
        self._tenants_s = -TENANTS_EVERY_S
        self._num_outputs = self._num_tokens = self._num_damaged = self._num_unknown = 0
        self._num_dropped = self._num_failures = self._num_missing_before = 0

    def start(self) -> None:
        """Start the thread."""
        self._worker.start()

    def close(self, timeout_s: float = 5.0) -> None:
        """End the thread."""
        self._worker.close(timeout_s)

    def step(self) -> bool:
        """Learn the next entries of every tenant. Return True if there may be more."""
        for tenant in self._publisher.take_erased():
            self._begin_anew(tenant, self._followed.get(tenant, _Followed()))
        self._find_tenants()
        has_more = False
        for tenant, followed in self._followed.items():
            if self._worker.closing.is_set() or self._clock() < followed.retry_s:
                continue
            try:
                has_more |= self._follow(tenant, followed)
            except CorpusError as error:
                followed.retry_s = self._clock() + _RETRY_S
                self._failed(error)
        return has_more

    def figures(self) -> LearnerFigures:
        """Return the present figures."""
        followed = list(self._followed.values())
        now_s = self._clock()
        lags_s = [now_s - one.behind_since_s for one in followed if one.end is not None]
        missing = [seen.num_missing for one in followed for seen in list(one.seen.values())]
        return LearnerFigures(
            self._num_outputs,
            self._num_tokens,
            max(lags_s, default=0.0),
            max(0, self._num_missing_before + sum(missing) - self._num_dropped),
            self._num_dropped,
            self._num_damaged,
            self._num_unknown,
            self._num_failures,
            self._share.cpu_s,
        )

    # ---- following ----

    def _find_tenants(self) -> None:
        self._add_tenants(self._publisher.tenants())
        if self._clock() < self._tenants_s + TENANTS_EVERY_S:
            return
        self._tenants_s = self._clock()
        try:
            self._add_tenants(self._log.tenants())
        except CorpusError as error:
            self._failed(error)

    def _add_tenants(self, tenants: Iterable[str]) -> None:
        new = {tenant: _Followed() for tenant in tenants if tenant not in self._followed}
        if new:
            self._followed = {**self._followed, **new}  # figures() may read the old one

    def _follow(self, tenant: str, followed: _Followed) -> bool:
        """Join, or read some entries. Return True if there may be more."""
        self._check_epoch(tenant, followed)
        if followed.has_to_join:
            self._join(tenant, followed)
        if followed.joining is not None:
            return self._learn_snapshot(followed)
        if followed.has_to_join:
            return True
        has_some = False
        for logged in self._log.read(tenant, followed.cursor, _READ_BYTES):
            has_some = True
            if logged.batch is None:
                self._num_damaged += 1
            elif not self._apply(tenant, followed, logged.batch):
                return True  # the trees are empty: all begins anew
            followed.cursor = logged.cursor
            self._passed(followed, logged.cursor)
            self._share.pause()
        if not has_some:
            self._passed(followed, None)
        elif followed.end is None and (end := self._log.end(tenant)) != followed.cursor:
            followed.end, followed.behind_since_s = end, self._clock()
        if followed.look_up_s and self._clock() >= followed.look_up_s[0]:
            self._look_up_tombstones(tenant, followed)
        if self._is_too_late(followed):
            self._skip(tenant, followed)
        return has_some or followed.has_to_join

    def _check_epoch(self, tenant: str, followed: _Followed) -> None:
        if followed.has_to_join or self._clock() < followed.epoch_s + TENANTS_EVERY_S:
            return
        epoch = self._log.epoch(tenant)
        followed.epoch_s = self._clock()
        if epoch != followed.epoch:
            self._log.forget_key(tenant)
            followed.erasures.clear()
            followed.looked_up.clear()
            self._begin_anew(tenant, followed)

    def _passed(self, followed: _Followed, cursor: Cursor | None) -> None:
        """Note that all up to a cursor was read, or all there is."""
        if cursor is None or cursor == followed.end:
            followed.end = None
        if cursor is None or cursor == followed.join_end:
            followed.join_end = None
            followed.awaited.clear()

    def _is_too_late(self, followed: _Followed) -> bool:
        """Return True if the learner is too far behind, and is not reading what was there when it joined."""
        num_bytes = (self._num_tokens - followed.tokens_before) * _TOKEN_BYTES
        is_joining = followed.join_end is not None and num_bytes < self._join_bytes
        lag_s = 0.0 if followed.end is None else self._clock() - followed.behind_since_s
        return not is_joining and lag_s > self._most_lag_s

    def _skip(self, tenant: str, followed: _Followed) -> None:
        """Go on with the newest entries: drafts from the newest outputs are worth most."""
        followed.cursor = self._log.end(tenant)
        followed.skipped = set(followed.seen)
        self._passed(followed, None)
        self._note_gap(followed)

    # ---- joining ----

    def _join(self, tenant: str, followed: _Followed) -> None:
        followed.epoch = self._log.epoch(tenant)
        followed.epoch_s = self._clock()
        self._publisher.enter_epoch(tenant, followed.epoch)
        followed.join_end = self._log.end(tenant)
        followed.tokens_before = self._num_tokens
        followed.cursor, met, followed.joining = join(self._log, tenant, self._join_bytes)
        followed.awaited = followed.erasures.keys() - met.keys()
        followed.has_to_join = False
        self._share.free(self._join_s)
        self._erase_met(tenant, followed, met)  # own outputs may be in the trees already

    def _learn_snapshot(self, followed: _Followed) -> bool:
        assert followed.joining is not None
        num_learned = 0
        for output in islice(followed.joining, _JOIN_PIECE):
            num_learned += 1
            if not self._is_erased(followed, output):
                self._learn(output, output.uses)
        if num_learned < _JOIN_PIECE:
            followed.joining = None
        return True

    def _begin_anew(self, tenant: str, followed: _Followed) -> None:
        """Empty the tenant's trees, and learn all again that the store holds."""
        self._trees.evict_tenant(tenant)
        self._memory.forget_tenant(tenant)
        self._num_missing_before += sum(seen.num_missing for seen in followed.seen.values())
        followed.seen.clear()
        followed.skipped.clear()
        followed.own_from = self._publisher.next_number(tenant)
        followed.end = None
        followed.joining = None
        followed.has_to_join = True

    # ---- records ----

    def _apply(self, tenant: str, followed: _Followed, batch: Batch) -> bool:
        """Apply the records that were not applied before. Return False if the tenant has to begin anew."""
        is_own = batch.origin == self._origin
        stale = self._repeat_erasures(tenant, followed, batch) if is_own else ()
        for numbers in self._new_numbers(followed, batch):
            for number in numbers:
                record = batch.records[number - batch.first]
                if isinstance(record, ForgetStage | ForgetSubject):
                    self._forget(tenant, followed, (batch.origin, number), record)
                    if followed.has_to_join:
                        return False
                elif is_own and (number in stale or number >= followed.own_from):
                    continue  # the trees learned it while the request ran
                elif not self._is_erased(followed, record):
                    self._learn_record(tenant, record)
        return True

    def _new_numbers(self, followed: _Followed, batch: Batch) -> list[range]:
        seen = followed.seen.get(batch.origin)
        if seen is None:
            seen = SeenNumbers()
            followed.seen[batch.origin] = seen
            if len(followed.seen) > _MOST_ORIGINS:
                self._num_missing_before += followed.seen.popitem(last=False)[1].num_missing
        num_missing = seen.num_missing
        numbers = seen.add(batch.first, len(batch.records))
        num_more = seen.num_missing - num_missing
        if num_more > 0 and batch.origin in followed.skipped:
            followed.skipped.discard(batch.origin)
            self._num_dropped += num_more
        elif num_more > 0:
            self._note_gap(followed)
        return numbers

    def _learn_record(self, tenant: str, record: Record) -> None:
        if isinstance(record, Output):
            self._learn(record, record.uses)
        elif isinstance(record, Count) and record != PLACEHOLDER:
            output = self._memory.get(tenant, record.digest)
            if output is None:
                self._num_unknown += 1
            else:
                self._learn(output, record.uses)

    def _learn(self, output: Output, uses: int) -> None:
        if int(output.tokens.max()) >= self._vocab_size:
            self._num_damaged += 1
            return
        self._memory.add(output)  # first: an erasure must find what the trees hold
        self._trees.learn(output.stage, output.tokens, uses)
        self._num_outputs += 1
        self._num_tokens += len(output.tokens)
        self._share.pause()

    # ---- erasures ----

    def _is_erased(self, followed: _Followed, record: Record) -> bool:
        """Return True if a tombstone that stands later in the log covers the record."""
        return any(followed.erasures[name].covers(record) for name in followed.awaited)

    def _forget(self, tenant: str, followed: _Followed, name: RecordId, tombstone: Tombstone) -> None:
        """Apply a tombstone of the log, unless it was applied before the trees were emptied."""
        if name in followed.erasures:
            followed.awaited.discard(name)
            return
        erasure = Erasure(tombstone)
        followed.erasures[name] = erasure
        if len(followed.erasures) > _MOST_ERASURES:
            followed.awaited.discard(followed.erasures.popitem(last=False)[0])
        self._erase(tenant, followed, erasure)

    def _erase(self, tenant: str, followed: _Followed, erasure: Erasure) -> None:
        """Remove what a tombstone covers. Own records below the next number are older than it."""
        withdrawal = self._publisher.withdraw(tenant, erasure)
        if withdrawal.outputs is None:
            self._begin_anew(tenant, followed)
        else:
            for output in {output.digest: output for output in withdrawal.outputs}.values():
                self._trees.forget(output.stage, output.tokens)
                self._share.pause()
            self._memory.forget(tenant, erasure.digests)
        now_s = self._clock()
        followed.stale = [stale for stale in followed.stale if stale.met_s > now_s - _REPEAT_S]
        if all(stale.erasure.tombstone != erasure.tombstone for stale in followed.stale):
            followed.stale.append(_Stale(erasure, withdrawal.next_number, now_s))

    def _note_gap(self, followed: _Followed) -> None:
        """Look for missed tombstones in the snapshot: now, and when a writer must have ended."""
        now_s = self._clock()
        followed.look_up_s = sorted({now_s, now_s + LEASE_S, *followed.look_up_s[-1:]})

    def _look_up_tombstones(self, tenant: str, followed: _Followed) -> None:
        """Apply tombstones among the entries that were skipped or lost: the snapshot keeps them."""
        self._erase_met(tenant, followed, join(self._log, tenant, 0).tombstones)
        del followed.look_up_s[:1]

    def _erase_met(self, tenant: str, followed: _Followed, met: Tombstones) -> None:
        """Apply tombstones of a snapshot that were never applied."""
        for name, tombstone in met.items():
            if name not in followed.erasures and name not in followed.looked_up:
                followed.looked_up.add(name)
                self._erase(tenant, followed, Erasure(tombstone))

    def _repeat_erasures(self, tenant: str, followed: _Followed, batch: Batch) -> set[int]:
        """Repeat erasures that own records stand behind in the log, though they are older.

        Other engines may have learned such a record. A batch sent twice may be late the second time.

        Returns:
            The numbers of these records.
        """
        found = set()
        for number, record in enumerate(batch.records, batch.first):
            for stale in followed.stale:
                if number < stale.below and stale.erasure.covers(record):
                    found.add(number)
                    self._repeat(tenant, stale.erasure)
        return found

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
            self._log.scope(tenant): followed.cursor
            for tenant, followed in self._followed.items()
            if followed.retry_s <= now_s
        }
        try:
            self._log.store.wait(cursors, _WAIT_S)
        except CorpusError as error:
            self._failed(error)
            self._worker.closing.wait(_WAIT_S)
        self._share.pause()

    def _failed(self, error: CorpusError) -> None:
        if self._num_failures == 0:
            logger.warning("learning from other engines: %s", error)
        self._num_failures += 1
