"""The seconds that decode steps would take without drafts, learned from the decode steps themselves.

Drafting saves the difference: each token of a step at the cost of a plain step, less the seconds of the step
(docs/ui.md). Knows no clock, no engine and no request.
"""

from __future__ import annotations

from typing import NamedTuple

_WINDOW = 64  # steps of one batch size: the mean fades over so many
_LIFETIME = 2000  # steps: a batch size that was not seen for so long has no known cost any more
_FEW_PLAIN = 4  # steps without drafts, before their mean counts
_FEW_DRAFTED = 8  # likewise of steps with drafts, whose cost without is an estimate
_OUTLIER = 10.0  # a step that takes longer than so many expected ones was held up by something else
_LEAST_SHARE = 0.02  # of a step's seconds: less than that is left of none without its drafts


class StepSaving(NamedTuple):
    """One step as each of its decoding requests saw it, and as it would have been without drafts.

    Attributes:
        measured_s: seconds the step took, with its drafts.
        fixed_s, per_token_s: a request that gained n tokens would have waited fixed_s + n * per_token_s.
    """

    measured_s: float
    fixed_s: float
    per_token_s: float

    def plain_s(self, num_tokens: int) -> float:
        """The estimate for a request that gained so many tokens."""
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

    Steps without drafts are measured. Where several requests decode, few steps are without drafts: then the
    cost is that of steps with drafts, less the cost of their draft tokens. A single request's step is either
    measured or not known: a pass over one token may run other kernels, so that steps with drafts say nothing.
    Between two known sizes the cost is interpolated. Beyond them it is not known.
    """

    __slots__ = ("_drafted", "_num_steps", "_plain")

    def __init__(self) -> None:
        self._num_steps = 0
        self._plain: dict[int, _Mean] = {}
        self._drafted: dict[int, _Mean] = {}

    def seconds(self, num_requests: int) -> float | None:
        """Of a step without drafts and prompts in which so many requests decode; None if not known."""
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
        """Take one decode step; what it saved by what was known before, None if that says nothing.

        Args:
            seconds: from the end of the last step to the end of this one.
            drafting_s: the share of it that was spent on guessing, not on the model.
            num_requests: that decoded in it.
            num_drafted: draft tokens that it verified.
            num_prompt_tokens: that were read in the same pass.
            draft_token_s: what a further draft token costs at present; None if that is not known.
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
    """The lowest number of requests that counts as of the same size: each to 8, then four sizes an octave."""
    shift = max(0, num_requests.bit_length() - 3)
    return num_requests >> shift << shift
