"""How many draft tokens a step verifies: the slots that the asynchronous scheduler gives a request.

Nothing else decides that where the scheduler works ahead of the drafts, except vLLM's adaptive verification
in its place. A request's next draft is not made yet, but the length of the one before is known. Which drafts
follow such a one is learned from all requests: the mean chance of acceptance of each slot, by stage and by
the length of the draft before. A slot is worth its price if it holds an accepted token often enough; a slot
that a short draft leaves empty costs as much as any. Needs no scheduler and does not import vLLM, so a worker
can have one as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agentspec.stages import StageKey
from agentspec.vllm_plugin.signals import Drafted

WORTH = 1.4  # least chance of acceptance in a slot, in prices; chosen on recorded calls
WINDOW = 128  # drafts of a case, after which they count half
FEW = 4  # drafts that say nothing yet
MOST_CASES = 4096
_BOUNDS = (0, 2, 5, 10, 14)  # classes of the length before
_CLASSES = range(-1, len(_BOUNDS) + 1)
_NO_DRAFT, *_ = _CLASSES  # class of what comes before a request's first draft

Case = tuple[StageKey | None, int]  # of which stage, None = of any; class of the length before


@dataclass(slots=True)
class _Request:
    stage: StageKey
    cases: tuple[int, ...]  # of its next draft, the closest first
    last: int | None = None  # length of the last known draft


class DraftSlots:
    """The last drafts of each request, and the drafts that followed such ones.

    Args:
        most: most slots of a request.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._requests: dict[str, _Request] = {}
        self._cases: dict[Case, int] = {(None, each): i for i, each in enumerate(_CLASSES)}
        self._sums = np.zeros((MOST_CASES, most), np.float32)  # of the acceptance of each case's drafts
        self._nums = np.zeros(MOST_CASES, np.float32)
        self._slots: list[int | None] = [None] * MOST_CASES  # None: too few drafts were seen
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
        """Take the drafts of a step. Those of unknown requests are ignored."""
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
        """Take the lengths of the next step's drafts that grammars dictate, by request."""
        self._dictated = dictated

    def num_slots(self, name: str) -> int:
        """Return the slots for the next draft of a request; all if nothing is known."""
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
        """Return how many of these slots its last draft leaves to padding."""
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
        """Add drafts to their cases, and count these cases' slots anew.

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
