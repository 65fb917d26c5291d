"""The publisher: sends finished outputs to other engines, in a thread of its own."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from agentspec.corpus.batch import Batch, ForgetStage, ModelUpdate, Part
from agentspec.corpus.batch_log import BatchLog
from agentspec.corpus.circuit_breaker import CircuitBreaker
from agentspec.corpus.erasure import PLACEHOLDER, Erasure, Tombstone, names
from agentspec.corpus.memory import OutputMemory
from agentspec.corpus.novelty import Novelty, NoveltyGate
from agentspec.corpus.outbox import Outbox
from agentspec.corpus.output import Output
from agentspec.corpus.output_queue import FinishedOutput, OutputQueue
from agentspec.corpus.worker import Worker
from agentspec.errors import AgentSpecError, BatchError, CorpusError, DataKeyError
from agentspec.stages import StageKey

logger = logging.getLogger("agentspec")

BATCH_BYTES = 256 << 10
QUEUE_BYTES = 16 << 20
COUNTS_EVERY_S = 60.0
UPDATES_EVERY_S = 0.5
_ACTIVE_S = 10.0  # without a batch; then a tenant needs no window
_TENANTS_PER_WINDOW = 8
_PAUSE_S = 0.02  # between two looks at the queue
_IDLE_S = 1.0  # without outputs; then the next one has to wake the thread


@dataclass(frozen=True, slots=True)
class PublisherFigures:
    """What became of finished outputs.

    Attributes:
        num_published: outputs sent whole.
        num_duplicates: outputs that are known already, sent as counts.
        num_skipped: outputs that carry nothing new, or of stages that are not shared.
        num_dropped: outputs without room in the queue, or that could not be sent.
        num_bytes: bytes sent.
        num_updates: updates of models sent.
        num_update_bytes: their part of the bytes.
        num_failures: failed calls of the store.
        since_success_s: seconds since the last successful call; None before the first.
    """

    num_published: int
    num_duplicates: int
    num_skipped: int
    num_dropped: int
    num_bytes: int
    num_updates: int
    num_update_bytes: int
    num_failures: int
    since_success_s: float | None


@dataclass(frozen=True, slots=True)
class Withdrawal:
    """What an erasure took back.

    Attributes:
        next_number: records with lower numbers were sent before, or have placeholders.
        outputs: all that the trees hold, with repetitions; None if some of them may not be known.
    """

    next_number: int
    outputs: list[Output] | None


class SharedModels(Protocol):
    """Acceptance models of stages. Safe to call from several threads."""

    def take_model_updates(self, wants: Callable[[StageKey], bool]) -> Iterable[tuple[StageKey, bytes]]:
        """Return what the models of wanted stages have learned since the last call."""

    def forget_models(self, tenant: str, path: tuple[str, ...]) -> None:
        """Forget what the models of a stage, and of all stages below it, have learned."""


class Publisher:
    """Publishes new finished outputs, in batches per tenant. Thread-safe.

    Outputs wait in a bounded queue. A thread judges them, encodes them and calls the store. While the store
    fails, it pauses, and the oldest outputs are dropped.

    Args:
        log: where to publish.
        origin: 16 random bytes that name this process.
        memory: outputs that other engines know; the learner adds those of others.
        gate: chooses the outputs to publish; None = the default one.
        window_s: time between two batches of a tenant; None = the store's. It is longer if more than eight
            tenants were active of late.
        batch_bytes: size at which a batch is sent earlier.
        queue_bytes: most bytes of waiting outputs.
        counts_every_s: time over which repetitions are summed.
        models: their updates are published, and an erasure makes them forget; None = there are none.
        is_shared: says if other engines get the outputs of a stage, by its path.
        clock: monotonic seconds.

    Attributes:
        put: :meth:`OutputQueue.put`, which takes a finished output unchecked: its tokens must be valid.
    """

    def __init__(
        self,
        log: BatchLog,
        origin: bytes,
        memory: OutputMemory,
        *,
        gate: NoveltyGate | None = None,
        window_s: float | None = None,
        batch_bytes: int = BATCH_BYTES,
        queue_bytes: int = QUEUE_BYTES,
        counts_every_s: float = COUNTS_EVERY_S,
        models: SharedModels | None = None,
        is_shared: Callable[[tuple[str, ...]], bool] = lambda path: True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log = log
        self._origin = origin
        self._memory = memory
        self._clock = clock
        self._gate = gate or NoveltyGate(memory)
        self._models = models
        self._is_shared = is_shared
        self._updates_due_s = -math.inf
        self._queue_bytes = queue_bytes
        self._queue = OutputQueue(queue_bytes)
        self.put = self._queue.put
        self._breaker = CircuitBreaker("publishing of outputs to other engines", clock)
        self._working = threading.Lock()  # guards what follows; never held by publish()
        self._window_s = log.store.window_s if window_s is None else window_s
        self._outboxes = defaultdict[str, Outbox](lambda: Outbox(self._window_s, batch_bytes, counts_every_s))
        self._erased: set[str] = set()
        self._num = dict.fromkeys(Novelty, 0)
        self._num_sent = self._num_lost = self._num_bytes = 0
        self._num_updates = self._num_update_bytes = 0
        self._success_s: float | None = None
        self._busy_s = -math.inf  # when the last outputs were taken from the queue
        self._deadline_s = math.inf  # of close()
        self._worker = Worker("publisher", self._step, end=lambda: self.pump(is_last=True))

    # ---- outputs ----

    def publish(self, output: Output, num_accepted_from_shared: int = 0) -> None:
        """Take a finished output, within microseconds. Never blocks and never raises.

        Args:
            output: its tokens must not change any more.
            num_accepted_from_shared: tokens that shared trees drafted and the model accepted.
        """
        ended_s = output.minute * 60.0
        self.put(
            (
                *(output.stage, output.tokens, output.subject, ended_s),
                *(num_accepted_from_shared, output.uses, -1, -1, output.session),
            )
        )

    def start(self) -> None:
        """Start the thread."""
        self._worker.start()

    def close(self, timeout_s: float = 5.0) -> None:
        """Send the rest, as far as the time allows."""
        self._deadline_s = self._clock() + timeout_s
        if not self._worker.is_alive:
            self.pump(is_last=True)
        self._worker.closing.set()
        self._queue.wake()
        self._worker.close(timeout_s)

    def pump(self, *, is_last: bool = False) -> float:
        """Send the batches that are due; all of them if it is the last call.

        Returns:
            Seconds until the next one is due, if no output arrives meanwhile.
        """
        with self._working:
            if (wait_s := self._breaker.wait_s) > 0 and not is_last:
                self._queue.drop_parts()
                return wait_s
            try:
                self._send_unsent()
                self._judge_finished()
                self._add_updates()
                if is_last:
                    self._enter_epochs()
                self._send_due(is_last)
            except CorpusError as error:
                self._breaker.fail(error)
                return self._breaker.wait_s
            due_s = min((outbox.due_s for outbox in self._outboxes.values()), default=math.inf)
            return max(0.0, due_s - self._clock())

    def figures(self) -> PublisherFigures:
        """Return the present figures."""
        since_s = None if self._success_s is None else self._clock() - self._success_s
        return PublisherFigures(
            self._num_sent,
            self._num[Novelty.COUNT],
            self._num[Novelty.SKIP],
            self._num_lost + self._queue.num_dropped,
            self._num_bytes,
            self._num_updates,
            self._num_update_bytes,
            self._breaker.num_failures,
            since_s,
        )

    # ---- erasure ----

    def tenants(self) -> list[str]:
        """Return the tenants of all outputs so far, skipped and dropped ones included: the trees hold them.

        Nothing is sent for a tenant before :meth:`enter_epoch`.
        """
        return list(dict.fromkeys([*self._outboxes, *self._memory.lost_tenants()]))

    def announce(self, tenant: str) -> None:
        """Let the store know a tenant of which it holds nothing, so that it can be erased."""
        with self._working:
            outbox = self._outboxes[tenant]
            if outbox.epoch is not None and not outbox.num_bytes:
                outbox.add(PLACEHOLDER)

    def next_number(self, tenant: str) -> int:
        """Return the sequence number of the tenant's next record."""
        with self._working:
            return self._outboxes[tenant].next_number

    def numbered(self, tenant: str, tombstone: Tombstone) -> Batch:
        """Return a tombstone as a batch of its own, with the next sequence number."""
        with self._working:
            return self._outboxes[tenant].number(self._origin, (tombstone,))

    def withdraw(self, tenant: str, erasure: Erasure) -> Withdrawal:
        """Take back all that an erasure covers and that was not sent yet.

        It is remembered, since the trees hold it.
        """
        with self._working:
            # what a person's outputs were drafted into, no model can tell: all of the tenant's forget
            tombstone = erasure.tombstone
            self._forget_models(tenant, tombstone.path if isinstance(tombstone, ForgetStage) else ())
            outbox = self._outboxes[tenant]
            named = self._queue.withdraw(
                lambda stage, subject: (
                    stage.tenant == tenant and names(erasure.tombstone, stage.path, subject)
                )
            )
            self._note_dropped()
            known = self._memory.recall(tenant, erasure.tombstone)
            erasure.digests.update(output.digest for output in (*named, *(known or ())))
            erasure.is_complete = known is not None
            waiting = outbox.withdraw(erasure)
            for output in (*named, *waiting):
                self._memory.add(output)
            outputs = None if known is None else [*known, *named, *waiting]
            return Withdrawal(outbox.next_number, outputs)

    def enter_epoch(self, tenant: str, epoch: int) -> None:
        """Take back all of a tenant from before this epoch. All sent from now on belongs to it.

        The learner calls this before it reads the tenant's log, so that it meets every later tombstone. If
        the tenant was ever erased, that may have been after the first outputs here.
        """
        with self._working:
            self._enter_epoch(tenant, epoch)

    def take_erased(self) -> set[str]:
        """Return the tenants that were erased since the last call: the trees may hold outputs from before."""
        with self._working:
            erased, self._erased = self._erased, set()
        return erased

    # ---- the lock is held ----

    def _enter_epoch(self, tenant: str, epoch: int) -> None:
        if epoch > (self._outboxes[tenant].epoch or 0):
            self._clear(tenant)
        self._outboxes[tenant].epoch = epoch

    def _enter_epochs(self) -> None:
        """Enter those of tenants that the learner has not read: their first outputs have just finished."""
        for tenant, outbox in list(self._outboxes.items()):
            if outbox.epoch is None:
                self._enter_epoch(tenant, self._log.epoch(tenant))

    def _judge_finished(self) -> None:
        self._note_dropped()
        now_s = self._clock()
        for finished in self._queue.take():
            self._busy_s = now_s
            try:
                self._judge(finished, now_s)
            except AgentSpecError:  # nothing that an engine writes; an erasure has to empty the trees then
                logger.exception("an output of %s can't be shared", finished.stage)
                self._memory.note(finished.stage, finished.subject)
            time.sleep(0)  # a decode step that waits for the GIL has it now, not after all of these

    def _judge(self, finished: FinishedOutput, now_s: float) -> None:
        outbox = self._outboxes[finished.stage.tenant]
        if not self._is_shared(finished.stage.path):
            self._keep(finished)
            return
        if finished.is_part:
            if outbox.epoch is not None:  # otherwise it would wait until it is of no use
                outbox.add(finished.part)
            return
        output = finished.output
        was_written = finished.number >= 0
        if was_written and outbox.epoch is not None:  # first: what follows replaces it
            outbox.add(Part(finished.stage.path, finished.number, 0, b"", finished.subject))
        novelty = self._gate.judge(output, finished.num_accepted_from_shared)
        self._num[novelty] += 1
        if novelty is Novelty.WHOLE:
            outbox.add(output)
            if outbox.epoch is None:
                self._limit_unentered()
        elif novelty is Novelty.COUNT:
            was_followed = was_written and outbox.was_shown(finished.number)
            outbox.count(output, now_s, was_followed=was_followed)

    def _keep(self, finished: FinishedOutput) -> None:
        """Remember an output that stays here, so that an erasure finds it in the trees."""
        if not finished.is_part:
            self._memory.add(finished.output)
            self._num[Novelty.SKIP] += 1

    def _add_updates(self) -> None:
        """Add what models have learned. They keep what can't be sent now."""
        now_s = self._clock()
        if self._models is None or now_s < self._updates_due_s:
            return
        self._updates_due_s = now_s + UPDATES_EVERY_S
        try:
            for stage, update in self._models.take_model_updates(self._wants_update):
                self._outboxes[stage.tenant].add_update(ModelUpdate(stage.path, update))
        except AgentSpecError:  # outputs do not wait for it
            logger.exception("updates of models can't be shared")

    def _wants_update(self, stage: StageKey) -> bool:
        outbox = self._outboxes.get(stage.tenant)
        return outbox is not None and outbox.wants_updates and self._is_shared(stage.path)

    def _forget_models(self, tenant: str, path: tuple[str, ...]) -> None:
        """Let models forget. No update from before is added after it: the lock is held."""
        if self._models is not None:
            self._models.forget_models(tenant, path)

    def _limit_unentered(self) -> None:
        """Drop the oldest outputs of tenants with an unknown epoch, beyond the queue's bytes.

        They wait outside the queue for as long as the store has been away since the start.
        """
        waiting = [outbox for outbox in self._outboxes.values() if outbox.epoch is None]
        num_bytes = sum(outbox.num_bytes for outbox in waiting)
        while num_bytes > self._queue_bytes:
            largest = max(waiting, key=lambda outbox: outbox.num_bytes)
            num_bytes -= largest.num_bytes
            dropped = largest.drop_oldest()
            num_bytes += largest.num_bytes
            assert isinstance(dropped, Output)
            self._num_lost += 1
            self._memory.forget(dropped.stage.tenant, (dropped.digest,))
            self._memory.note(dropped.stage, dropped.subject)  # the trees hold it

    def _note_dropped(self) -> None:
        for stage, subject in self._queue.take_dropped():
            self._memory.note(stage, subject)

    def _send_unsent(self) -> None:
        """Send the batches that failed before: until then, outputs wait in the bounded queue."""
        for tenant, outbox in list(self._outboxes.items()):
            if outbox.unsent is not None:
                self._send(tenant, outbox.unsent)

    def _widen_windows(self) -> None:
        """Let many tenants gather for longer: the store takes so many batches in a second, and no more."""
        active_s = self._clock() - _ACTIVE_S
        num_active = sum(outbox.was_sent_since(active_s) for outbox in self._outboxes.values())
        window_s = self._window_s * max(1.0, num_active / _TENANTS_PER_WINDOW)
        for outbox in self._outboxes.values():
            outbox.window_s = window_s

    def _send_due(self, is_last: bool) -> None:
        self._widen_windows()
        for tenant, outbox in list(self._outboxes.items()):
            while is_last or outbox.due_s <= self._clock():
                batch = outbox.cut(self._origin, self._clock(), is_last=is_last)
                if batch is None or self._clock() > self._deadline_s:
                    break
                self._send(tenant, batch)

    def _send(self, tenant: str, batch: Batch) -> None:
        """Publish an outbox's unsent batch. Raises CorpusError; then it stays there."""
        outbox = self._outboxes[tenant]
        num_outputs = sum(isinstance(record, Output) for record in batch.records)
        try:
            num_bytes = self._log.publish(tenant, batch, outbox.epoch)
            outbox.is_refused = False
        except (DataKeyError, BatchError) as error:  # of this tenant only
            if not outbox.is_refused:
                logger.warning("outputs of tenant %s are not shared: %s", tenant, error)
            outbox.is_refused = True
            self._num_lost += num_outputs
            return outbox.sent(self._clock())
        if num_bytes is None:
            before, outbox.epoch = outbox.epoch, self._log.epoch(tenant, outbox.epoch or 0)
            if outbox.epoch != before:  # else the store had lost the erasure, and the batch may be sent again
                self._num_lost += num_outputs
                self._clear(tenant)
            return None
        self._breaker.succeed()
        self._success_s = self._clock()
        self._num_sent += num_outputs
        self._num_bytes += num_bytes
        num_updates = sum(isinstance(record, ModelUpdate) for record in batch.records)
        if num_updates:  # they have batches of their own
            self._num_updates += num_updates
            self._num_update_bytes += num_bytes
        return outbox.sent(self._success_s)

    def _clear(self, tenant: str) -> None:
        """Drop all outputs of a tenant: they are older than its erasure."""
        self._queue.withdraw(lambda stage, _: stage.tenant == tenant)
        self._outboxes[tenant].clear()
        self._log.forget_key(tenant)
        self._forget_models(tenant, ())
        self._erased.add(tenant)

    # ---- the thread ----

    def _step(self) -> None:
        wait_s = self.pump()
        if self._breaker.is_open:
            self._worker.closing.wait(wait_s)
        elif not self._worker.closing.wait(_PAUSE_S) and self._clock() > self._busy_s + _IDLE_S:
            self._queue.wait(min(wait_s, _IDLE_S))
