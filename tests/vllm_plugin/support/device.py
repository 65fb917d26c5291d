"""vLLM's model runner V2 without vLLM: its steps are enqueued, and a device runs them some steps later."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentspec.vllm_plugin.planner import Planned, StepPlanner
from tests.vllm_plugin.support.runner import Request

MAX_ROWS = 8


@dataclass
class Enqueued:
    """A step that the device has not run yet."""

    planned: Planned | None
    rows: list[Request]
    drafts: list[list[int]]  # that it verifies: known when it runs
    num_sampled: NDArray[np.int32]
    sampled: NDArray[np.int64]
    is_prefill: bool


class Device:
    """A caller of a planner, in place of vLLM's worker, and the stream of its device.

    Args:
        lag: number of steps that the device is behind Python.
        model: returns the draft of the device's draft model for a request; None without one.

    Attributes:
        planned: the last step.
    """

    def __init__(
        self, planner: StepPlanner, lag: int = 1, model: Callable[[Request], list[int]] | None = None
    ) -> None:
        self.planner = planner
        self._model = model
        self.planned: Planned | None = None
        self.live: dict[str, Request] = {}
        self._lag = lag
        self._queue: deque[Enqueued] = deque()
        self._finished: list[str] = []
        self._preempted: set[str] = set()
        self._seen: set[str] = set()
        self._slots: dict[str, int] = {}
        self.num_computed: dict[str, int] = {}  # if not all of a request's text

    def add(self, *requests: Request) -> None:
        for one in requests:
            self.live[one.req_id] = one

    def finish(self, *names: str) -> None:
        for name in names:
            del self.live[name]
            self._finished.append(name)

    def preempt(self, name: str) -> None:
        """Stop a request; its next step starts it anew."""
        self._preempted.add(name)
        self._seen.discard(name)
        self._slots.pop(name, None)
        self.live[name].draft = []

    def step(self, names: Iterable[str] | None = None, *, chunk: bool = False) -> None:
        """Enqueue one step of these requests, in this order of rows; None = of all requests."""
        rows = [self.live[name] for name in (self.live if names is None else names)]
        planner = self.planner
        slots = {one.req_id: [-1] * self._slots[one.req_id] for one in rows if self._slots.get(one.req_id)}
        planner.begin_step(
            SimpleNamespace(
                finished_req_ids=set(self._finished),
                scheduled_cached_reqs=SimpleNamespace(
                    req_ids=(cached := [one.req_id for one in rows if one.req_id in self._seen]),
                    num_computed_tokens=[self.num_computed.get(name, 1 << 20) for name in cached],
                ),
                preempted_req_ids=self._preempted or None,
                scheduled_spec_decode_tokens=slots,
                total_num_scheduled_tokens=len(rows) + sum(map(len, slots.values())),
            )
        )
        self._finished, self._preempted = [], set()
        planner.start([self._new(one) for one in rows if one.req_id not in self._seen])
        self._seen.update(one.req_id for one in rows)
        num_draft_tokens = planner.drafter.num_draft_tokens
        num_sampled = np.zeros(len(rows), np.int32)
        sampled = np.full((len(rows), 1 + num_draft_tokens), -1, np.int64)
        self.planned = planned = planner.plan([one.req_id for one in rows], num_sampled, sampled)
        drafts = [slots.get(one.req_id, []) for one in rows]
        self._queue.append(Enqueued(planned, rows, drafts, num_sampled, sampled, chunk))
        self._slots.update({one.req_id: 0 if chunk else num_draft_tokens for one in rows})
        while len(self._queue) > self._lag:
            self._run(self._queue.popleft())

    def wait(self) -> None:
        """Run all steps that are enqueued."""
        while self._queue:
            self._run(self._queue.popleft())
        self.planner.observe()

    def run(self, name: str) -> int:
        """Run all steps of one request and finish it. Return the number of steps."""
        one, num_steps = self.live[name], 0
        while len(one.written) < len(one.output):
            self.step([name])
            self.wait()
            num_steps += 1
        self.finish(name)
        return num_steps

    def _new(self, one: Request) -> Any:
        return SimpleNamespace(
            req_id=one.req_id,
            prompt_token_ids=one.prompt_token_ids,
            prefill_token_ids=[*one.prompt, *one.written],
            sampling_params=one.sampling_params,
            lora_request=one.lora_request,
            prompt_embeds=None,
        )

    def _run(self, step: Enqueued) -> None:
        for row, one in enumerate(step.rows):
            if step.is_prefill:
                continue
            tokens = _verified(one, one.draft[: len(step.drafts[row])])
            one.written += tokens
            step.num_sampled[row] = len(tokens)
            step.sampled[row, : len(tokens)] = tokens
        if step.planned is not None:
            step.planned.step.run()
        for row, one in enumerate(step.rows):
            one.draft = [] if step.is_prefill else self._draft(step.planned, row, one)

    def _draft(self, planned: Planned | None, row: int, one: Request) -> list[int]:
        draft: list[int] = self.planner.drafts[row].tolist()
        if self._model is not None and planned is not None and draft[0] < 0:
            draft[: planned.num_model] = self._model(one)[: planned.num_model]
        assert min(draft) >= 0
        return draft


def _verified(one: Request, draft: Sequence[int]) -> list[int]:
    """Accept the tokens that agree with the output, and add one; past its end, the model goes on."""
    rest = [*one.output[len(one.written) :], *[998, 999] * MAX_ROWS]
    agreed = next((n for n, (a, b) in enumerate(zip(draft, rest, strict=False)) if a != b), len(draft))
    return rest[: agreed + 1]
