"""How the engine core calls its workers, and how it waits for them."""

from __future__ import annotations

import time
from concurrent.futures import Future
from typing import Any

from vllm.distributed.device_communicators import shm_broadcast
from vllm.v1.core.sched.output import GrammarOutput
from vllm.v1.executor.multiproc_executor import MultiprocExecutor

MANY = 4  # requests of a step: with so many, the API server and the gateway need the core as well
PAUSE_S = 200e-6  # about 1 % of a step of the bundled model with eight requests


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

    vLLM polls without a pause, which takes a whole core. On a CPU other processes need it. With two cores,
    the bundled model and eight requests at a time, a forward pass takes a seventh less with pauses. With one
    request at a time, its step would take 3 to 8 % more (docs/log.md).

    Attributes:
        num_requests: requests of the present step.
    """

    def __init__(self) -> None:
        self.num_requests = 0
        self._yield = shm_broadcast.sched_yield
        shm_broadcast.sched_yield = self._pause

    def _pause(self) -> None:
        if self.num_requests >= MANY:
            time.sleep(PAUSE_S)
        else:
            self._yield()
