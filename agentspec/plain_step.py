"""An estimate of the seconds that decode steps would take without drafts, learned from the decode steps.

Drafting saves the difference: each token of a step at the cost of a plain step, less the seconds of the step
(docs/ui.md). This module has no clock, no engine and no request.
"""

from __future__ import annotations

from typing import NamedTuple

_WINDOW = 64  # steps of one batch size, over which the mean fades
_LIFETIME = 2000  # steps, after which the cost of an unseen batch size counts as unknown
_FEW_PLAIN = 4  # steps without drafts before their mean counts
_FEW_DRAFTED = 8  # the same for steps with drafts, for which the cost without drafts is an estimate
_OUTLIER = 10.0  # a step slower than this multiple of the expected time was delayed by something else
_LEAST_SHARE = 0.02  # of a step's seconds: least cost without drafts


class StepSaving(NamedTuple):
    """One step as each of its decoding requests saw it, and its estimate without drafts.

    Attributes:
        measured_s: seconds the step took, with its drafts.
        fixed_s, per_token_s: a request that gained n tokens would have waited fixed_s + n * per_token_s.
    """

    measured_s: float
    fixed_s: float
    per_token_s: float

    def plain_s(self, num_tokens: int) -> float:
        """Return the estimated seconds without drafts for a request that gained ``num_tokens`` tokens."""
        return max(0.0, self.fixed_s + num_tokens * self.per_token_s)


class _Mean:
    """A fading mean of the seconds and of the size of similar steps."""

    __slots__ = ("last_step", "num_requests", "num_steps", "seconds")

    def __init__(self) -> None:
        self.num_steps = self.last_step = 0
        self.seconds = self.num_requests = 0.0

    def add(self, seconds: float, num_requests: int, step: int) -> None:
        if self.num_steps >= _FEW_DRAFTED:
            seconds = min(seconds, _OUTLIER * self.seconds)
        self.num_steps = min(self.num_steps + 1, _WINDOW)
        self.seconds += (seconds - self.seconds) / self.num_steps
        self.num_requests += (num_requests - self.num_requests) / self.num_steps
        self.last_step = step


class PlainStep:
    """The cost of a step without drafts, by the number of requests that decode in it.

    Steps without drafts are measured. If several requests decode, few steps have no drafts. The cost is then
    that of steps with drafts, less the cost of their draft tokens. The cost of a single request's step is
    either measured or unknown: a pass over one token may run other kernels than a pass with drafts.
    Between two known sizes the cost is interpolated. Beyond them it is unknown.
    """

    __slots__ = ("_drafted", "_num_steps", "_plain")

    def __init__(self) -> None:
        self._num_steps = 0
        self._plain: dict[int, _Mean] = {}
        self._drafted: dict[int, _Mean] = {}

    def seconds(self, num_requests: int) -> float | None:
        """Return the time of a step without drafts and prompts, by number of requests; None if unknown."""
        size = _size(num_requests)
        if (mean := self._known(size)) is not None:
            return mean.seconds
        sizes = sorted({*self._plain, *self._drafted})
        below = next((mean for one in reversed(sizes) if one < size and (mean := self._known(one))), None)
        above = next((mean for one in sizes if one > size and (mean := self._known(one))), None)
        if below is None or above is None:
            return None
        share = (num_requests - below.num_requests) / (above.num_requests - below.num_requests)
        return below.seconds + share * (above.seconds - below.seconds)

    def observe(
        self,
        seconds: float,
        drafting_s: float,
        num_requests: int,
        num_drafted: int,
        num_prompt_tokens: int,
        draft_token_s: float | None,
    ) -> StepSaving | None:
        """Take one decode step and return its saving by the costs known before; None if they do not suffice.

        Args:
            seconds: time from the end of the last step to the end of this one.
            drafting_s: share of it spent on drafting, not on the model.
            num_requests: number of requests that decoded in it.
            num_drafted: draft tokens that it verified.
            num_prompt_tokens: prompt tokens processed in the same pass.
            draft_token_s: current cost of one more draft token; None if unknown.
        """
        if num_requests < 1 or not 0 <= drafting_s < seconds < float("inf"):
            return None
        self._num_steps += 1
        plain_s = self.seconds(num_requests)
        if not num_drafted:
            if not num_prompt_tokens:
                self._learn(self._plain, seconds - drafting_s, num_requests)
            return StepSaving(seconds, seconds - drafting_s, 0.0)
        drafts_s = drafting_s + num_drafted * (draft_token_s or 0.0)
        if draft_token_s is not None and not num_prompt_tokens and num_requests > 1:
            self._learn(self._drafted, max(seconds - drafts_s, _LEAST_SHARE * seconds), num_requests)
        if plain_s is None or (draft_token_s is None and num_prompt_tokens):
            return None
        if num_prompt_tokens:  # they are read once, with drafts or without
            return StepSaving(seconds, max(0.0, seconds - drafts_s) - plain_s, plain_s)
        held_up_s = max(0.0, seconds - _OUTLIER * (plain_s + drafts_s))
        return StepSaving(seconds, held_up_s, plain_s)

    def _learn(self, means: dict[int, _Mean], seconds: float, num_requests: int) -> None:
        mean = means.setdefault(_size(num_requests), _Mean())
        if self._is_old(mean):
            mean.num_steps = 0
        mean.add(seconds, num_requests, self._num_steps)

    def _known(self, size: int) -> _Mean | None:
        for means, few in ((self._plain, _FEW_PLAIN), (self._drafted, _FEW_DRAFTED)):
            mean = means.get(size)
            if mean is not None and mean.num_steps >= few and not self._is_old(mean):
                return mean
        return None

    def _is_old(self, mean: _Mean) -> bool:
        return self._num_steps - mean.last_step > _LIFETIME


def _size(num_requests: int) -> int:
    """Return the least request count of the same size class: each up to 8, then four sizes per octave."""
    shift = max(0, num_requests.bit_length() - 3)
    return num_requests >> shift << shift
