"""The steps of both model runners: Python plans a step, which then runs without the GIL.

A planned step (:class:`RowStep <agentspec.forest.RowStep>`) reads the sampled tokens and drafts for the next
forward pass. With model runner V2 the device's stream runs the step after the samples have arrived, and
Python never waits for it; with V1 the step runs immediately. Python reads a step's results while it plans
later steps. Does not import vLLM.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from agentspec.draft import Source
from agentspec.forest import RowStep
from agentspec.stages import StageKey
from agentspec.vllm_plugin.drafter import ForestDrafter, Timing
from agentspec.vllm_plugin.signals import Drafted
from agentspec.vllm_plugin.v2.model_drafts import ModelDrafts

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import CachedRequestData, NewRequestData, SchedulerOutput

logger = logging.getLogger(__name__)

WAIT_S = 0.002  # time-out for a step with samples that have arrived
LONGEST_STEP_S = 10.0  # a step in flight for longer is given up
_PAUSE_S = 50e-6


class Planned:
    """A step in flight: its rows, and what vLLM scheduled for them."""

    __slots__ = ("names", "num_model", "num_scheduled", "price", "step", "verified")

    def __init__(
        self,
        step: RowStep,
        names: list[str],
        verified: Mapping[str, Sequence[int]],
        num_scheduled: int,
        price: float,
        num_model: int = 0,
    ) -> None:
        self.step = step
        self.names = names
        self.verified = verified
        self.num_scheduled = num_scheduled  # tokens
        self.price = price
        self.num_model = num_model  # tokens that the draft model is to draft


class StepPlanner:
    """Plans the steps of one engine process. Only the worker's thread may use it; :meth:`drafted` any thread.

    Args:
        drafter: the live requests.
        max_rows: most rows of a batch.
        memory: returns memory for an array of this shape and dtype that the device can copy from.
        clock: ``time.monotonic``'s seconds.
        model: statistics of vLLM's draft model; None without one.

    Attributes:
        drafts: int64 ``[max_rows, K]``, drafts of the step that ran last, padded with tokens of the model. A
            row begins with -1 where the draft model drafts.
        chances: float32 ``[max_rows, K]``: probability of each draft token given that those before it are
            accepted; 0 for padding.
        timing: durations of steps in the worker's thread.
    """

    def __init__(
        self,
        drafter: ForestDrafter,
        max_rows: int,
        memory: Callable[[tuple[int, int], Any], NDArray[Any]] = np.zeros,
        clock: Callable[[], float] = time.monotonic,
        model: ModelDrafts | None = None,
    ) -> None:
        self.drafter = drafter
        self._model = model
        self.drafts: NDArray[np.int64] = memory((max_rows, drafter.num_draft_tokens), np.int64)
        self.chances: NDArray[np.float32] = memory((max_rows, drafter.num_draft_tokens), np.float32)
        self.timing = Timing()
        self._clock = clock
        self._flying: deque[Planned] = deque()
        self._last: Planned | None = None
        self._stopped: set[str] = set()  # preempted requests, which V2 starts again as new ones
        self._verified: Mapping[str, Sequence[int]] = {}
        self._dictated: Mapping[str, Sequence[int]] = {}
        self._num_scheduled = 0
        self._thread_s = 0.0  # of the present step, in the worker's thread
        self._last_drafts: dict[str, list[int]] = {}  # of traced requests
        self._num_failures = 0

    # ---- calls from the worker ----

    def begin_step(self, scheduler_output: SchedulerOutput) -> None:
        """Begin a step: note the requests that have ended, and the slots scheduled for verification."""
        begin_s = self._clock()
        self.observe()
        self._stopped |= scheduler_output.preempted_req_ids or set()
        self._stopped -= scheduler_output.finished_req_ids
        self.drafter.end(scheduler_output.finished_req_ids)
        self._prefill(scheduler_output.scheduled_cached_reqs)
        if not self.drafter.live and not self._flying:
            self.drafter.meter.idle(begin_s)
        self._verified = scheduler_output.scheduled_spec_decode_tokens
        self._num_scheduled = scheduler_output.total_num_scheduled_tokens
        self._thread_s = self._clock() - begin_s

    def start(self, new_requests: Iterable[NewRequestData]) -> None:
        """Finish the requests that have ended. Start new ones, and those that continue after preemption."""
        begin_s = self._clock()
        self.drafter.finish_ended()
        for new in new_requests:
            if new.req_id in self.drafter.live:
                self._wait_for(new.req_id)  # the next input of a streaming session reuses the id
            if new.req_id in self._stopped:
                self._stopped.discard(new.req_id)
                self.drafter.rows.resume(new.req_id, len(new.prefill_token_ids or ()))
                continue
            prompt = new.prompt_token_ids or []  # None for a prompt of embeddings
            whole = new.prefill_token_ids or (prompt if new.prompt_embeds is None else new.prompt_embeds)
            self.drafter.start(new, len(whole), prompt)
        self._thread_s += self._clock() - begin_s

    # ---- a step ----

    def expect(self, dictated: Mapping[str, Sequence[int]]) -> None:
        """Note the outputs that grammars dictate, for the step that is planned next."""
        self._dictated = dictated

    def plan(
        self, names: list[str], num_sampled: NDArray[np.int32], sampled: NDArray[np.int64]
    ) -> Planned | None:
        """Plan the step whose samples will arrive in these arrays. The caller runs it, on the stream or
        directly.

        Args:
            names: request of each row.
            num_sampled: int32 ``[rows]``; 0 while a prompt is not fully read.
            sampled: int64 ``[rows, n]``, of which ``num_sampled`` tokens count.

        Returns:
            The step, which writes ``drafts`` and ``chances`` when it runs; None if planning failed: the rows
                    get no more drafts.
        """
        begin_s = self._clock()
        dictated, self._dictated = self._dictated, {}
        try:
            self.drafter.enter_ready()
            price = self.drafter.price
            num_model, least = self._offer(names, price)
            step = RowStep(
                self.drafter.rows,
                names,
                verified=self._verified,
                num_sampled=num_sampled,
                sampled=sampled,
                drafts=self.drafts,
                chances=self.chances,
                min_prob=price,
                num_model=num_model,
                least=least,
                dictated=dictated,
            )
        except Exception:
            self.give_up(names, "it could not be planned", exc_info=True)
            return None
        planned = Planned(step, names, self._verified, self._num_scheduled, price, num_model)
        self._flying.append(planned)
        self._last = planned
        self.timing.add(self._thread_s + self._clock() - begin_s)
        self._thread_s = 0.0
        return planned

    def observe(self) -> None:
        """Count and trace the steps that have run."""
        while self._flying and self._flying[0].step.is_done:
            try:
                self._take(self._flying.popleft())
            except Exception:
                logger.exception("a step was not counted")

    def drafted(self, planned: Planned, timeout_s: float = WAIT_S) -> Drafted | None:
        """Return lengths and probabilities of a step's drafts; None if the step does not run in time."""
        if not self._has_run(planned, timeout_s):
            return None
        step, acceptance = planned.step, planned.step.acceptance
        if self._model is not None:
            for row, length in enumerate(step.model_lengths):
                acceptance[row, :length] = self._model.acceptance[:length]
        return Drafted(planned.names, step.lengths, acceptance, planned.price)

    def last_lengths(self, timeout_s: float) -> dict[str, int]:
        """Return the draft lengths of the last planned step; none if it does not run within the time-out."""
        last = self._last
        if last is None or not self._has_run(last, timeout_s):
            return {}
        return dict(zip(last.names, last.step.lengths, strict=True))

    def _has_run(self, planned: Planned, timeout_s: float) -> bool:
        """Wait for a step; return False if it does not run within the time-out."""
        end_s = self._clock() + timeout_s
        while not planned.step.is_done:
            if self._clock() >= end_s:
                return False
            time.sleep(_PAUSE_S)
        return True

    def _offer(self, names: list[str], price: float) -> tuple[int, NDArray[np.float32] | None]:
        """Return the number of tokens that the model drafts, and the least worth of the trees' drafts."""
        if self._model is None:
            return 0, None
        return self._model.num_tokens(price), self._model.least(map(self._stage_of, names))

    def _stage_of(self, name: str) -> StageKey | None:
        live = self.drafter.live.get(name)
        return None if live is None else live.trees

    def _prefill(self, cached: CachedRequestData) -> None:
        """Note requests whose prompts are computed, or computed again after a failed load of their cache."""
        live = self.drafter.live
        for name, num_computed in zip(cached.req_ids, cached.num_computed_tokens, strict=True):
            one = live.get(name)
            if one is not None and num_computed < one.num_prompt_tokens and name not in self._stopped:
                self.drafter.rows.prefill(name)

    def _wait_for(self, name: str) -> None:
        """Return once no step in flight has a row of this request, or after a time-out."""
        last = next((one for one in reversed(self._flying) if name in one.names), None)
        if last is not None and not self._has_run(last, LONGEST_STEP_S):
            self.drafter.rows.lose(name)

    # ---- results of a step ----

    def _take(self, planned: Planned) -> None:
        step, drafter = planned.step, self.drafter
        if step.error:
            self.give_up(planned.names, step.error)
            return
        end_s = step.begin_s + step.took_s
        drafter.timing.add(step.took_s)
        if self._model is not None:
            for row, num_verified, num_accepted, forgone in step.model_results:
                stage = self._stage_of(planned.names[row])
                self._model.learn(stage, forgone, num_verified, num_accepted, planned.price)
        saving = drafter.meter.observe(step.begin_s, end_s, planned.num_scheduled, *step.sums)
        if saving is not None and self._model is None:  # steps without drafts run the draft model, too
            step.count_saving(saving)
        if drafter.traces.live:
            self._note(planned)

    def _note(self, planned: Planned) -> None:
        """Add the step to the traces of its requests."""
        step = planned.step
        traces = self.drafter.traces
        for row, name in enumerate(planned.names):
            trace = traces.live.get(name)
            sampled = step.sampled(row) if trace is not None else ()
            if trace is None or not sampled:
                continue
            num_gained, source = step.gained(row)
            draft = self._last_drafts.get(name, [])[: len(planned.verified.get(name, ()))]
            draft += sampled[len(draft) : -1]  # accepted padding
            self._last_drafts[name] = step.draft(row)
            try:
                trace.add(Source(source), draft, sampled, num_gained)
            except Exception:
                logger.exception("the request %r continues without a trace", name)
                traces.drop(name)
        self._last_drafts = {name: one for name, one in self._last_drafts.items() if name in traces.live}

    def give_up(self, names: list[str], reason: str, **options: Any) -> None:
        """Note that a step failed: its requests end without drafts, learning and traces."""
        self.drafter.lose_step(names)
        self._num_failures += 1
        if self._num_failures.bit_count() == 1:  # logs only the 1st, 2nd, 4th, 8th ... failure
            logger.error("%d steps so far went on without drafts: %s", self._num_failures, reason, **options)
