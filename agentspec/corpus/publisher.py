"""The publisher: sends finished outputs to other engines, in a thread of its own."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from agentspec.corpus.batch import Batch, Output, Tombstone, covers
from agentspec.corpus.batch_log import BatchLog
from agentspec.corpus.memory import OutputMemory
from agentspec.corpus.outbox import FinishedOutput, Outbox, OutputQueue
from agentspec.corpus.threads import CircuitBreaker, Worker
from agentspec.errors import AgentSpecError, BatchError, CorpusError, DataKeyError

logger = logging.getLogger("agentspec")

BATCH_BYTES = 256 << 10
QUEUE_BYTES = 16 << 20
_ACTIVE_S = 10.0  # without a batch; then a tenant needs no window
_TENANTS_PER_WINDOW = 8
_PAUSE_S = 0.02  # between two looks at the queue
_IDLE_S = 1.0  # without outputs; then the next one has to wake the thread


@dataclass(frozen=True, slots=True)
class PublisherFigures:
    """What became of finished outputs.

    Attributes:
        num_published: outputs sent.
        num_skipped: outputs of stages that are not shared.
        num_dropped: outputs without room in the queue, or that could not be sent.
        num_bytes: bytes sent.
        num_failures: failed calls of the store.
        since_success_s: seconds since the last successful call; None before the first.
    """

    num_published: int
    num_skipped: int
    num_dropped: int
    num_bytes: int
    num_failures: int
    since_success_s: float | None


class Publisher:
    """Publishes finished outputs, in batches per tenant. Thread-safe.

    Outputs wait in a bounded queue. A thread encodes them and calls the store. While the store fails, it
    pauses, and the oldest outputs are dropped.

    Args:
        log: where to publish.
        origin: 16 random bytes that name this process.
        memory: outputs that the trees hold; the learner adds those of other engines.
        window_s: time between two batches of a tenant; None = the store's. It is longer if more than eight
            tenants were active of late.
        batch_bytes: size at which a batch is sent earlier.
        queue_bytes: most bytes of waiting outputs.
        is_shared: says if other engines get the outputs of a stage, by its path.
        clock: monotonic seconds.

    Attributes:
        queue: takes finished outputs unchecked, on the path of an answer: their tokens must be valid.
    """

    def __init__(
        self,
        log: BatchLog,
        origin: bytes,
        memory: OutputMemory,
        *,
        window_s: float | None = None,
        batch_bytes: int = BATCH_BYTES,
        queue_bytes: int = QUEUE_BYTES,
        is_shared: Callable[[tuple[str, ...]], bool] = lambda path: True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log = log
        self._origin = origin
        self._memory = memory
        self._clock = clock
        self._is_shared = is_shared
        self._queue_bytes = queue_bytes
        self.queue = OutputQueue(queue_bytes)
        self._breaker = CircuitBreaker("publishing of outputs to other engines", clock)
        self._working = threading.Lock()  # guards what follows; never held on the path of an answer
        self._window_s = log.store.window_s if window_s is None else window_s
        self._outboxes = defaultdict[str, Outbox](lambda: Outbox(self._window_s, batch_bytes))
        self._erased: set[str] = set()
        self._num_sent = self._num_skipped = self._num_lost = self._num_bytes = 0
        self._success_s: float | None = None
        self._busy_s = -math.inf  # when the last outputs were taken from the queue
        self._deadline_s = math.inf  # of close()
        self._worker = Worker("publisher", self._step, end=lambda: self.pump(is_last=True))

    # ---- outputs ----

    def publish(self, output: Output) -> None:
        """Take a finished output, within microseconds. Never blocks and never raises.

        Args:
            output: its tokens must not change any more.
        """
        ended_s = output.minute * 60.0
        self.queue.put((output.stage, output.tokens, output.subject, ended_s, output.session))

    def start(self) -> None:
        """Start the thread."""
        self._worker.start()

    def close(self, timeout_s: float = 5.0) -> None:
        """Send the rest, as far as the time allows."""
        self._deadline_s = self._clock() + timeout_s
        if not self._worker.is_alive:
            self.pump(is_last=True)
        self._worker.closing.set()
        self.queue.wake()
        self._worker.close(timeout_s)

    def pump(self, *, is_last: bool = False) -> float:
        """Send the batches that are due; all of them if it is the last call.

        Returns:
            Seconds until the next one is due, if no output arrives meanwhile.
        """
        with self._working:
            if (wait_s := self._breaker.wait_s) > 0 and not is_last:
                return wait_s
            try:
                self._send_unsent()
                self._take_finished()
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
        num_dropped = self._num_lost + self.queue.num_dropped
        return PublisherFigures(
            *(self._num_sent, self._num_skipped, num_dropped, self._num_bytes),
            *(self._breaker.num_failures, since_s),
        )

    # ---- erasure ----

    def tenants(self) -> list[str]:
        """Return the tenants of all outputs so far, skipped and dropped ones included: the trees hold them.

        Nothing is sent for a tenant before :meth:`enter_epoch`.
        """
        return list(dict.fromkeys([*self._outboxes, *self._memory.noted_tenants()]))

    def next_number(self, tenant: str) -> int:
        """Return the sequence number of the tenant's next record."""
        with self._working:
            return self._outboxes[tenant].next_number

    def numbered(self, tenant: str, tombstone: Tombstone) -> Batch:
        """Return a tombstone as a batch of its own, with the next sequence number."""
        with self._working:
            return self._outboxes[tenant].number(self._origin, (tombstone,))

    def withdraw(self, tenant: str, tombstone: Tombstone) -> int:
        """Take back all that an erasure covers and that was not sent yet. The memory keeps it: trees hold it.

        Returns:
            A sequence number: records with lower ones were sent before, or are taken back.
        """
        with self._working:
            for output in self.queue.withdraw(
                lambda stage, subject: stage.tenant == tenant and covers(tombstone, stage.path, subject)
            ):
                self._memory.add(output)
            self._note_dropped()
            outbox = self._outboxes[tenant]
            outbox.withdraw(tombstone)
            return outbox.next_number

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
                self._enter_epoch(tenant, self._log.marks(tenant).epoch)

    def _take_finished(self) -> None:
        self._note_dropped()
        now_s = self._clock()
        for finished in self.queue.take():
            self._busy_s = now_s
            try:
                self._add(finished)
            except AgentSpecError:  # nothing that an engine writes; an erasure has to empty the trees then
                logger.exception("an output of %s can't be shared", finished.stage)
                self._memory.note(finished.stage, finished.subject)
            time.sleep(0)  # a decode step that waits for the GIL has it now, not after all of these

    def _add(self, finished: FinishedOutput) -> None:
        outbox, output = self._outboxes[finished.stage.tenant], finished.output
        self._memory.add(output)
        if not self._is_shared(output.stage.path):
            self._num_skipped += 1
            return
        outbox.add(output)
        if outbox.epoch is None:
            self._limit_unentered()

    def _note_dropped(self) -> None:
        for stage, subject in self.queue.take_dropped():
            self._memory.note(stage, subject)

    def _limit_unentered(self) -> None:
        """Drop the oldest outputs of tenants with an unknown epoch, beyond the queue's bytes.

        They wait outside the queue for as long as the store has been away since the start.
        """
        waiting = [outbox for outbox in self._outboxes.values() if outbox.epoch is None]
        while sum(outbox.num_bytes for outbox in waiting) > self._queue_bytes:
            max(waiting, key=lambda outbox: outbox.num_bytes).drop_oldest()
            self._num_lost += 1

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
                batch = outbox.cut(self._origin)
                if batch is None or self._clock() > self._deadline_s:
                    break
                self._send(tenant, batch)

    def _send(self, tenant: str, batch: Batch) -> None:
        """Publish an outbox's unsent batch. Raises CorpusError; then it stays there."""
        outbox = self._outboxes[tenant]
        num_outputs = sum(1 for _ in batch.outputs)
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
            before, outbox.epoch = outbox.epoch, self._log.marks(tenant, outbox.epoch or 0).epoch
            if outbox.epoch != before:  # else the store had lost the erasure, and the batch may be sent again
                self._num_lost += num_outputs
                self._clear(tenant)
            return None
        self._breaker.succeed()
        self._success_s = self._clock()
        self._num_sent += num_outputs
        self._num_bytes += num_bytes
        return outbox.sent(self._success_s)

    def _clear(self, tenant: str) -> None:
        """Drop all outputs of a tenant: they are older than its erasure."""
        self.queue.withdraw(lambda stage, _: stage.tenant == tenant)
        self._outboxes[tenant].clear()
        self._log.forget_key(tenant)
        self._erased.add(tenant)

    # ---- the thread ----

    def _step(self) -> None:
        wait_s = self.pump()
        if self._breaker.is_open:
            self._worker.closing.wait(wait_s)
        elif not self._worker.closing.wait(_PAUSE_S) and self._clock() > self._busy_s + _IDLE_S:
            self.queue.wait(min(wait_s, _IDLE_S))
