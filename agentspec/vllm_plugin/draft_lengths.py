"""The number of slots that the asynchronous scheduler gives a request, from the lengths of its drafts.

The scheduler reserves slots for a draft before it is made. It knows the length of the draft before that one.
Which lengths follow is learned from all requests, by the length itself and roughly by the one before. Does
not import vLLM.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

# attributes of vLLM's ModelRunnerOutput: the draft length of each request, the drafts (vLLM's DraftTokenIds)
NUM_DRAFTED, DRAFTS = "agentspec_num_drafted", "agentspec_drafts"
LATE_DRAFTS = "drafts"  # attribute of our StepOutput: returns the drafts

SHARE = 0.3  # of such cases in which the last slot is filled; chosen on recorded calls, see docs/log.md
WINDOW = 128  # cases, after which they count half
FEW = 8  # cases that say nothing yet
_BOUNDS = (0, 2, 5, 10, 14)  # classes of the length before


class DraftLengths:
    """The last draft lengths of each request, and the lengths that followed such ones.

    Args:
        most: most slots of a request.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._last: dict[str, tuple[int, ...]] = {}
        self._following: dict[tuple[int, ...], _Following] = {}

    def learn(self, lengths: Mapping[str, int]) -> None:
        """Take the draft lengths of a step."""
        for name, length in lengths.items():
            last = self._last.get(name, ())
            if last:  # the first draft of a request is verified with all slots
                for key in _keys(last):
                    following = self._following.get(key)
                    if following is None:
                        following = self._following[key] = _Following(self._most)
                    following.add(length)
            self._last[name] = (*last[-1:], length)

    def forget(self, names: Iterable[str]) -> None:
        """Forget requests that ended. Unknown ones are ignored."""
        for name in names:
            self._last.pop(name, None)

    def num_slots(self, name: str) -> int:
        """Return the slots for the next draft of a request: the last is filled in ``SHARE`` of such cases.

        A request without a known draft gets all slots: it may repeat what its stage wrote before.
        """
        last = self._last.get(name)
        if last is None:
            return self._most
        for key in _keys(last):
            following = self._following.get(key)
            if following is not None and following.num >= FEW:
                return following.num_slots()
        return min(self._most, last[-1])

    def num_padded(self, name: str, num_slots: int) -> int:
        """Return how many of these slots its last draft leaves to padding."""
        last = self._last.get(name)
        return 0 if last is None else max(0, num_slots - last[-1])


class _Following:
    """The draft lengths that followed in similar cases."""

    __slots__ = ("_counts", "_num_slots", "num")

    def __init__(self, most: int) -> None:
        self.num = 0
        self._counts = [0] * (most + 1)
        self._num_slots: int | None = None

    def add(self, length: int) -> None:
        if self.num >= WINDOW:
            self._counts = [count // 2 for count in self._counts]
            self.num = sum(self._counts)
        self._counts[min(length, len(self._counts) - 1)] += 1
        self.num += 1
        self._num_slots = None

    def num_slots(self) -> int:
        """Return the greatest length that ``SHARE`` of the cases reached."""
        if self._num_slots is None:
            num_reached, self._num_slots = 0, len(self._counts)
            while self._num_slots and num_reached < SHARE * self.num:
                self._num_slots -= 1
                num_reached += self._counts[self._num_slots]
        return self._num_slots


def _keys(last: tuple[int, ...]) -> Iterable[tuple[int, ...]]:
    """Yield the keys of cases like this one, the closest first."""
    if len(last) > 1:
        yield last[-1], sum(last[-2] > bound for bound in _BOUNDS)
    yield last[-1:]
