"""Decides how many draft slots a request gets in a step that is scheduled before its drafts are known.

No other part decides this in asynchronous scheduling, except vLLM's adaptive verification if it is on. The
length of a request's previous draft is known. For each stage and class of previous length, the mean
probability of acceptance of each slot is learned from all requests. A slot is worth its price if the token in
it is accepted often enough; a slot that a short draft leaves empty costs as much as any other. This module
needs no scheduler and does not import vLLM, so a worker can use it too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agentspec.stages import StageKey
from agentspec.vllm_plugin.signals import Drafted

WORTH = 1.4  # least ratio of a slot's probability of acceptance to the price; chosen on recorded calls
WINDOW = 128  # number of drafts of a case after which the older ones count half
FEW = 4  # number of drafts below which a case has no result
MOST_CASES = 4096
_BOUNDS = (0, 2, 5, 10, 14)  # bounds of the classes of the previous draft's length
_CLASSES = range(-1, len(_BOUNDS) + 1)
_NO_DRAFT, *_ = _CLASSES  # class of a request without a previous draft

Case = tuple[StageKey | None, int]  # a stage, or None for all stages; and a class of the previous length


@dataclass(slots=True)
class _Request:
    stage: StageKey
    cases: tuple[int, ...]  # cases of its next draft, the most specific first
    last: int | None = None  # length of the last known draft


class DraftSlots:
    """The last draft of each request, and statistics of the draft that follows, by stage and previous length.

    Args:
        most: largest number of slots of a request.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._requests: dict[str, _Request] = {}
        self._cases: dict[Case, int] = {(None, each): i for i, each in enumerate(_CLASSES)}
        self._sums = np.zeros((MOST_CASES, most), np.float32)  # sums of the acceptance of each case's drafts
        self._nums = np.zeros(MOST_CASES, np.float32)
        self._slots: list[int | None] = [None] * MOST_CASES  # None: too few drafts
        self._price = 0.0
        self._dictated: Mapping[str, int] = {}

    def add(self, name: str, stage: StageKey) -> None:
        """Add a request, unless it is known."""
        if name not in self._requests:
            self._requests[name] = _Request(stage, self._cases_of(stage, _NO_DRAFT))

    def forget(self, names: Iterable[str]) -> None:
        """Forget requests that ended. Unknown ones are ignored."""
        for name in names:
            self._requests.pop(name, None)

    def learn(self, drafted: Drafted) -> None:
        """Add the drafts of a step to the statistics. Drafts of unknown requests are ignored."""
        cases: list[int] = []
        rows: list[int] = []
        for row, (name, length) in enumerate(zip(drafted.names, drafted.lengths, strict=True)):
            request = self._requests.get(name)
            if request is not None:
                cases += request.cases
                rows += [row] * len(request.cases)
                request.cases = self._cases_of(request.stage, sum(length > bound for bound in _BOUNDS))
                request.last = length
        self._price = drafted.price
        if cases:
            self._add(np.array(cases), drafted.acceptance[rows], drafted.price)

    def expect(self, dictated: Mapping[str, int]) -> None:
        """Set the lengths of dictated drafts in the next step, by request."""
        self._dictated = dictated

    def num_slots(self, name: str) -> int:
        """Return the number of slots for the next draft of a request; all slots without statistics."""
        request = self._requests.get(name)
        if request is not None:
            for case in request.cases:
                slots = self._slots[case]
                if slots is not None:
                    if self._dictated and self._price < 1:
                        return max(slots, min(self._dictated.get(name, 0), self._most))
                    return slots
        return self._most

    def num_padded(self, name: str, num_slots: int) -> int:
        """Return how many of these slots the request's last draft leaves to padding."""
        request = self._requests.get(name)
        return 0 if request is None or request.last is None else max(0, num_slots - request.last)

    def _cases_of(self, stage: StageKey, length_class: int) -> tuple[int, ...]:
        of_any = self._cases[None, length_class]
        case = self._cases.get((stage, length_class))
        if case is None:
            if len(self._cases) == MOST_CASES:
                return (of_any,)
            case = self._cases[stage, length_class] = len(self._cases)
        return case, of_any

    def _add(self, cases: NDArray[np.intp], acceptance: NDArray[np.float32], price: float) -> None:
        """Add drafts to their cases, and update the slots of these cases.

        Args:
            cases: int ``[drafts]``; may repeat.
            acceptance: float32 ``[drafts, K]``.
        """
        np.add.at(self._sums, cases, acceptance)
        np.add.at(self._nums, cases, 1)
        changed = np.unique(cases)
        full = changed[self._nums[changed] >= WINDOW]
        self._sums[full] /= 2
        self._nums[full] /= 2
        changed = changed[self._nums[changed] >= FEW]
        is_worth = self._sums[changed] >= WORTH * price * self._nums[changed, None]  # falls along a row
        for case, num_slots in zip(changed.tolist(), is_worth.sum(1).tolist(), strict=True):
            self._slots[case] = num_slots
