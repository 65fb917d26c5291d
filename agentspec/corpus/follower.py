"""The follower of one tenant's log: the position in the log, and what the process does with each record."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import Protocol

from agentspec.corpus.batch import Batch, ForgetStage, ForgetSubject, Output, Tokens, Tombstone
from agentspec.corpus.batch_log import BatchLog, SeenNumbers
from agentspec.corpus.memory import MetErasures, OutputMemory, Tombstones
from agentspec.corpus.publisher import Publisher
from agentspec.corpus.snapshots import LEASE_S
from agentspec.corpus.store import START, Cursor
from agentspec.corpus.threads import CpuShare
from agentspec.draft import Origin
from agentspec.errors import CorpusError
from agentspec.stages import StageKey

logger = logging.getLogger("agentspec")

EPOCH_EVERY_S = 2.0
_READ_BYTES = 1 << 20
_TOKEN_BYTES = 4
_JOIN_PIECE = 64  # outputs that are learned between two pauses while joining
_MOST_ORIGINS = 4096


class SharedTrees(Protocol):
    """The trees that learn from other engines. Other threads may run decode steps during a call."""

    def learn(
        self,
        stage: StageKey,
        token_ids: Tokens,
        uses: int = 1,
        origin: Origin = Origin.LOCAL,
        session: bytes = b"",
    ) -> None:
        """Add an output that occurred ``uses`` times to the trees of its stage and of its session."""

    def forget(self, stage: StageKey, token_ids: Tokens) -> None:
        """Remove an output, and all outputs with equal tokens, from every tree that may hold it."""

    def evict_tenant(self, tenant: str) -> None:
        """Empty all shared trees of a tenant."""

    def learn_nothing_personal(self) -> None:
        """From now on, train no model on requests that carry personal data or that do not learn."""

    def forget_models(self, tenant: str, path: tuple[str, ...]) -> None:
        """Reset the learned models of a stage and of all stages below it. ``()`` means all."""


class LearnedOutputs:
    """Adds the outputs of other engines to the trees and removes them, within a CPU share.

    Args:
        trees: the trees to change.
        memory: remembers the outputs that the trees hold.
        vocab_size: outputs with token ids from this number on are refused.
        share: limits the thread's share of one core.

    Attributes:
        num_outputs: outputs learned, repetitions included.
        num_tokens: number of tokens of these outputs.
        num_refused: outputs with tokens outside the vocabulary.
    """

    def __init__(self, trees: SharedTrees, memory: OutputMemory, vocab_size: int, share: CpuShare) -> None:
        self._trees = trees
        self._memory = memory
        self._vocab_size = vocab_size
        self._share = share
        self.num_outputs = self.num_tokens = self.num_refused = 0

    def learn(self, output: Output, origin: Origin) -> None:
        """Add an output to the trees, with the number of its uses."""
        if int(output.tokens.max()) >= self._vocab_size:
            self.num_refused += 1
            return
        self._memory.add(output)  # before the trees: an erasure must find every output that they hold
        self._trees.learn(output.stage, output.tokens, output.uses, origin, output.session)
        self.num_outputs += 1
        self.num_tokens += len(output.tokens)
        self._share.pause()

    def forget(self, tenant: str, tombstone: Tombstone) -> bool:
        """Remove the outputs that a tombstone covers. Return False if the trees may still hold some."""
        # no record says which models a person's outputs have trained: reset all models of the tenant
        path = tombstone.path if isinstance(tombstone, ForgetStage) else ()
        self._trees.forget_models(tenant, path)
        outputs = self._memory.take(tenant, tombstone)
        for output in outputs or ():
            self._trees.forget(output.stage, output.tokens)
            self._share.pause()
        return outputs is not None

    def evict_tenant(self, tenant: str) -> None:
        """Empty the trees of a tenant, and the memory of their outputs."""
        self._memory.forget_tenant(tenant)  # first, since another thread may add outputs
        self._trees.evict_tenant(tenant)
        self._trees.forget_models(tenant, ())


@dataclass(frozen=True, slots=True)
class FollowerParts:
    """Objects and limits that the followers of a process share.

    Attributes:
        log: the logs to follow.
        origin: 16 bytes that identify this process, whose own outputs are in the trees already.
        learned: adds outputs to the trees.
        publisher: withdraws erased outputs that are not sent yet.
        repeat: called with a tenant, erasures that have to be published again, and the number of the tenant's
            last erasure, or 0. An erasure is repeated if older records of this process appeared behind it in
            the log, or if the store has lost it. A number other than 0 is written back to the store.
        share: limits the thread's share of one core.
        most_lag_s: a follower that lags by more seconds skips to the newest entries.
        join_bytes: limit of the bytes of tokens to learn from a snapshot, and from the log before a skip.
        join_s: seconds after the start in which the CPU share is not limited.
        clock: monotonic seconds.
    """

    log: BatchLog
    origin: bytes
    learned: LearnedOutputs
    publisher: Publisher
    repeat: Callable[[str, Iterable[Tombstone], int], object]
    share: CpuShare
    most_lag_s: float
    join_bytes: int
    join_s: float
    clock: Callable[[], float]


class Follower:
    """Learns a tenant's snapshot, then reads its log. Every call that reads may raise CorpusError.

    Attributes:
        cursor: position behind the last entry that was read.
        retry_s: time of the clock at which to try again after a failure.
        num_dropped: number of records skipped on purpose.
        num_damaged: number of unusable batches.
        num_failures: number of snapshots that could be read only in part.
    """

    def __init__(self, tenant: str, parts: FollowerParts) -> None:
        self._tenant = tenant
        self._parts = parts
        self._erasures = MetErasures()
        self._epoch = -1
        self._num_erasure = 0  # number of the last erasure of a stage or a person that was read
        self._epoch_s = 0.0
        self._has_to_join = True
        self._joining: Iterator[Output] | None = None  # outputs of the snapshot that are still to be learned
        self._join_end: Cursor | None = None  # the newest entry when joining began; None once it was read
        self._tokens_before = 0  # number of tokens that all followers had learned before this one joined
        self._own_from = 0  # this process's own records from this number on are in the trees already
        self._seen: OrderedDict[bytes, SeenNumbers] = OrderedDict()
        self._skipped: set[bytes] = set()  # origins with a gap of numbers that was skipped on purpose
        self._look_up_s: list[float] = []  # times at which to look for tombstones in the snapshot
        self._end: Cursor | None = None  # the newest entry when this follower began to lag
        self._behind_since_s = 0.0
        self._num_missing_before = 0
        self.cursor: Cursor = START
        self.retry_s = 0.0
        self.num_dropped = self.num_damaged = self.num_failures = 0

    @property
    def lag_s(self) -> float:
        """Seconds since the follower learned of the oldest entry that it has not read."""
        return 0.0 if self._end is None else self._parts.clock() - self._behind_since_s

    @property
    def has_joined(self) -> bool:
        """True once the follower has learned the snapshot and the entries that existed when it joined."""
        return not self._has_to_join and self._joining is None and self._join_end is None

    @property
    def num_missing(self) -> int:
        """Number of records that never arrived, including those skipped on purpose."""
        return self._num_missing_before + sum(seen.num_missing for seen in list(self._seen.values()))

    def follow(self) -> bool:
        """Join the log, or read some entries. Return True if there may be more."""
        self._check_epoch()
        if self._has_to_join:
            self._join()
        if self._joining is not None:
            return self._learn_snapshot()
        if self._has_to_join:
            return True
        has_some = False
        for logged in self._parts.log.read(self._tenant, self.cursor, _READ_BYTES):
            has_some = True
            if logged.batch is None:
                self.num_damaged += 1
            elif not self._apply(logged.batch):
                return True  # the tenant was erased and its trees are empty: join again
            self.cursor = logged.cursor
            self._passed(logged.cursor)
            self._parts.share.pause()
        if not has_some:
            self._passed(None)
        elif self._end is None and (end := self._parts.log.end(self._tenant)) != self.cursor:
            self._end, self._behind_since_s = end, self._parts.clock()
        if self._look_up_s and self._parts.clock() >= self._look_up_s[0]:
            self._look_up_tombstones()
        if self._is_too_late():
            self._skip()
        return has_some or self._has_to_join

    def begin_anew(self) -> None:
        """Empty the tenant's trees and models, and learn the store's content again."""
        self._parts.learned.evict_tenant(self._tenant)
        self._num_missing_before += sum(seen.num_missing for seen in self._seen.values())
        self._seen.clear()
        self._skipped.clear()
        self._own_from = self._parts.publisher.next_number(self._tenant)
        self._end = None
        self._joining = None
        self._has_to_join = True

    # ---- position in the log ----

    def _check_epoch(self) -> None:
        if self._has_to_join or self._parts.clock() < self._epoch_s + EPOCH_EVERY_S:
            return
        marks = self._parts.log.marks(self._tenant, self._epoch)
        self._epoch_s = self._parts.clock()
        if marks.epoch != self._epoch:
            self._parts.log.forget_key(self._tenant)
            self._erasures.forget()
            self.begin_anew()
        elif marks.erasure < self._num_erasure:
            logger.warning("the corpus has lost erasures of tenant %r, which are repeated", self._tenant)
            self._parts.repeat(self._tenant, self._erasures.all(), self._num_erasure)
        else:
            self._num_erasure = marks.erasure

    def _passed(self, cursor: Cursor | None) -> None:
        """Note that all entries up to a cursor were read; None = all entries of the log."""
        if cursor is None or cursor == self._end:
            self._end = None
        if cursor is None or cursor == self._join_end:
            self._join_end = None
            self._erasures.stop_awaiting()

    def _is_too_late(self) -> bool:
        """Return True if the lag exceeds the limit, unless the follower is still joining."""
        num_bytes = (self._parts.learned.num_tokens - self._tokens_before) * _TOKEN_BYTES
        is_joining = self._join_end is not None and num_bytes < self._parts.join_bytes
        return not is_joining and self.lag_s > self._parts.most_lag_s

    def _skip(self) -> None:
        """Continue with the newest entries, since the newest outputs yield the best drafts."""
        begin, self.cursor = self.cursor, self._parts.log.end(self._tenant)
        self._skipped = set(self._seen)
        self._find_late(begin)
        self._passed(None)
        self._note_gap()

    # ---- joining ----

    def _join(self) -> None:
        parts = self._parts
        begin, is_first = self.cursor, self._epoch < 0
        marks = parts.log.marks(self._tenant, max(self._epoch, 0))
        if marks.epoch != self._epoch:
            self._num_erasure = 0
        self._epoch, self._num_erasure = marks.epoch, max(marks.erasure, self._num_erasure)
        self._epoch_s = parts.clock()
        parts.publisher.enter_epoch(self._tenant, self._epoch)
        self._join_end = parts.log.end(self._tenant)
        self._tokens_before = parts.learned.num_tokens
        self.cursor, met, batches = self._snapshot()
        self._joining = self._outputs(batches)
        self._erasures.await_again(met)
        self._has_to_join = False
        parts.share.free(parts.join_s)
        self._erase(self._erasures.look_up(met))  # the trees may hold own outputs that these erasures cover
        if not is_first:  # in the first join, this process has not sent anything before
            self._find_late(begin)

    def _snapshot(self) -> tuple[Cursor, Tombstones, Iterator[Batch]]:
        """Begin to read the snapshot. Return its end in the log, its tombstones, and its other batches."""
        snapshot = self._parts.log.snapshot(self._tenant)
        if snapshot is None:
            return START, {}, iter(())
        found: Tombstones = {}
        batches = self._usable(snapshot.batches)
        for batch in batches:
            if any(batch.outputs):
                return snapshot.cursor, found, chain([batch], batches)
            for number, record in enumerate(batch.records, batch.first):
                if isinstance(record, ForgetStage | ForgetSubject):
                    found[batch.origin, number] = record
        return snapshot.cursor, found, iter(())

    def _usable(self, batches: Iterator[Batch | None]) -> Iterator[Batch]:
        for batch in batches:
            if batch is None:
                self.num_damaged += 1
            else:
                yield batch

    def _outputs(self, batches: Iterator[Batch]) -> Iterator[Output]:
        """Yield a snapshot's outputs up to the first part that can't be read. The rest costs speed only."""
        num_bytes = 0
        try:
            for batch in batches:
                for output in batch.outputs:
                    num_bytes += output.tokens.nbytes
                    if num_bytes > self._parts.join_bytes:
                        return
                    yield output
        except CorpusError:  # for example, the snapshot was replaced during the read
            self.num_failures += 1

    def _learn_snapshot(self) -> bool:
        assert self._joining is not None
        num_learned = 0
        for output in islice(self._joining, _JOIN_PIECE):
            num_learned += 1
            if not self._erasures.cover(output):
                self._parts.learned.learn(output, Origin.SNAPSHOT)
        if num_learned < _JOIN_PIECE:
            self._joining = None
        return True

    # ---- records ----

    def _apply(self, batch: Batch) -> bool:
        """Apply the records that are new here. Return False if the tenant has to begin anew."""
        is_own = batch.origin == self._parts.origin
        late = self._repeat_erasures(batch) if is_own else ()
        for numbers in self._new_numbers(batch):
            for number in numbers:
                record = batch.records[number - batch.first]
                if isinstance(record, ForgetStage | ForgetSubject):
                    if self._erasures.meet((batch.origin, number), record):
                        self._erase([record])
                    if self._has_to_join:
                        return False
                elif is_own and (number in late or number >= self._own_from):
                    continue  # an own output: the trees learned it while its request ran
                elif isinstance(record, Output) and not self._erasures.cover(record):
                    self._parts.learned.learn(record, Origin.FLEET)
        return True

    def _new_numbers(self, batch: Batch) -> list[range]:
        seen = self._seen.get(batch.origin)
        if seen is None:
            seen = SeenNumbers()
            self._seen[batch.origin] = seen
            if len(self._seen) > _MOST_ORIGINS:
                self._num_missing_before += self._seen.popitem(last=False)[1].num_missing
        num_missing = seen.num_missing
        numbers = seen.add(batch.first, len(batch.records))
        num_more = seen.num_missing - num_missing
        if num_more > 0 and batch.origin in self._skipped:
            self._skipped.discard(batch.origin)
            self.num_dropped += num_more
        elif num_more > 0:
            self._note_gap()
        return numbers

    # ---- erasures ----

    def _erase(self, met: Iterable[Tombstone]) -> None:
        """Apply erasures. Own records below the next sequence number are older than the erasures."""
        for tombstone in met:
            below = self._parts.publisher.withdraw(self._tenant, tombstone)
            self._erasures.note_applied(tombstone, below, self._parts.clock())
            self._epoch_s = -EPOCH_EVERY_S  # makes the next step read the erasure's number from the store
            if not self._parts.learned.forget(self._tenant, tombstone):
                self.begin_anew()

    def _note_gap(self) -> None:
        """Search the snapshot for missed tombstones: now, and when a running writer must have ended."""
        now_s = self._parts.clock()
        self._look_up_s = sorted({now_s, now_s + LEASE_S, *self._look_up_s[-1:]})

    def _look_up_tombstones(self) -> None:
        """Apply the tombstones of entries that were skipped or lost. The snapshot keeps tombstones."""
        _, met, _ = self._snapshot()
        self._erase(self._erasures.look_up(met))
        del self._look_up_s[:1]

    def _find_late(self, begin: Cursor) -> None:
        """Repeat erasures for own records in skipped entries: a snapshot may hold these records."""
        end = self._parts.log.end(self._tenant)
        cursor: Cursor | None = begin if self._erasures.has_applied else None
        while cursor is not None and cursor != end:
            entries, cursor = self._parts.log.read(self._tenant, cursor, _READ_BYTES), None
            for logged in entries:
                cursor = logged.cursor
                if logged.batch is not None and logged.batch.origin == self._parts.origin:
                    self._repeat_erasures(logged.batch)
                self._parts.share.pause()

    def _repeat_erasures(self, batch: Batch) -> set[int]:
        """Repeat the erasures of own records that are older than an erasure, but stand behind it in the log.

        Returns:
            The sequence numbers of these records.
        """
        late = list(self._erasures.late(batch))
        if late:
            self._parts.repeat(self._tenant, {tombstone for _, tombstone in late}, 0)
        return {number for number, _ in late}
