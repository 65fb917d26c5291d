"""How the engine core calls its workers, and how it waits for them."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from vllm.distributed.device_communicators import shm_broadcast
from vllm.v1.core.sched.output import GrammarOutput
from vllm.v1.executor.multiproc_executor import MultiprocExecutor

MANY = 4  # requests of a step: from here on the API server and the gateway need the core as well
PAUSE_S = 200e-6  # about 1 % of a step of the bundled model with eight requests
SLEPT = 0.8  # of the least wait for a step
LATE_S = 100e-6  # a thread wakes up so much too late
RISE = 0.05  # of the least wait towards a longer one


class EarlySampling:
    """Asks the workers to sample while they run the forward pass: they need not wait for the call after it.

    vLLM makes this call only after they have reported the end of the forward pass.

    Args:
        executor: executor of the engine. Its ``sample_tokens`` is replaced.
    """

    def __init__(self, executor: MultiprocExecutor) -> None:
        self._sample = executor.sample_tokens
        self._asked: Future[Any] | None = None
        executor.sample_tokens = self._samples

    def ask(self, masks: GrammarOutput | None) -> None:
        """Ask for the samples of the step that the workers run, with the masks of its grammars."""
        self._asked = self._sample(masks, non_block=True)

    def _samples(self, masks: GrammarOutput | None, non_block: bool = False) -> Any:
        """Return the samples; replaces the executor's ``sample_tokens``."""
        asked, self._asked = self._asked, None
        if asked is None:
            return self._sample(masks, non_block)
        return asked if non_block else asked.result()


class Pauses:
    """Lets the engine core sleep while it waits for a worker.

    vLLM polls without a pause, which takes a whole core. On a CPU other processes need it. Here it sleeps for
    most of the time that such a step has taken at least, and polls for the rest. With many requests it pauses
    between two looks, too (lab/log).

    Args:
        clock: seconds from any beginning.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._num_requests = 0
        self._size = 0  # of the present step: steps of one size take about as long
        self._begin_s: float | None = None  # of the wait for its output
        self._least_s: dict[int, float] = {}  # waits by size; longer ones raise it slowly
        self._yield = shm_broadcast.sched_yield
        shm_broadcast.sched_yield = self._pause

    def begin_step(self, num_requests: int, num_tokens: int) -> None:
        """Begin a step that computes ``num_tokens`` tokens of ``num_requests`` requests."""
        self._num_requests, self._size, self._begin_s = num_requests, num_tokens.bit_length(), None

    def end_step(self) -> None:
        """Learn how long the step's output took, if it was waited for."""
        if self._begin_s is None:
            return
        waited_s = self._clock() - self._begin_s
        least_s = self._least_s.get(self._size, waited_s)
        self._least_s[self._size] = min(waited_s, least_s + RISE * (waited_s - least_s))

    def _pause(self) -> None:
        if self._begin_s is None:
            self._begin_s = self._clock()
            self._sleep(SLEPT * self._least_s.get(self._size, 0.0) - LATE_S)
        elif self._num_requests >= MANY:
            time.sleep(PAUSE_S)
        else:
            self._yield()

    def _sleep(self, seconds: float) -> None:
        time.sleep(seconds) if seconds > PAUSE_S else self._yield()
