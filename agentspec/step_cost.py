"""What verifying one more token costs at present, learned from the decode steps themselves.

A step verifies rows of tokens (each request's last one and its draft), takes seconds and yields the tokens
that were accepted. One more row is worth its time if its chance of being accepted is at least

    price = seconds per further row * tokens per second

in accepted tokens (docs/drafting.md). Knows no clock, no engine and no request.
"""

from __future__ import annotations

FIRST_PRICE = 0.2
WINDOW = 128  # steps: what is older than a few of these is forgotten
_FIRST_WEIGHT = (
    0.25  # of the first price, against the variance of the rows: without variance it is the answer
)
_FEW = 8  # steps before anything is taken for an outlier
_OUTLIER = 4.0  # deviations; what is beyond counts as so much
_LEAST_SHARE = 0.01  # of a step's seconds: less than that are no deviations, and not what decoding took
_SHORTEST_S, _LONGEST_S = 1e-9, 3600.0  # no step takes less, or more: the clock was set


class StepCost:
    """The price of a draft token; a few additions per step, no memory of single steps.

    Seconds are fitted as a linear function of rows and prompt rows, around the recent steps' means and
    by least squares, both fading over ``WINDOW`` steps, so that a cost that bends is fitted where the server
    is now. While the rows hardly vary their cost can't be told: the fit is drawn to ``FIRST_PRICE``, under
    which something is drafted again, and the rows vary. Same steps, same price.
    """

    __slots__ = (
        "_deviation",
        "_num_steps",
        "_prompt_prompt",
        "_prompt_rows",
        "_prompt_seconds",
        "_prompt_slope",
        "_rows",
        "_rows_prompt",
        "_rows_rows",
        "_rows_seconds",
        "_seconds",
        "_slope",
        "_tokens",
    )

    def __init__(self) -> None:
        self._num_steps = 0
        # means per step
        self._rows = self._prompt_rows = self._seconds = self._tokens = 0.0
        # and of products of what they were off by
        self._rows_rows = self._rows_prompt = self._prompt_prompt = 0.0
        self._rows_seconds = self._prompt_seconds = 0.0
        self._deviation = 0.0  # of seconds from the fit, mean
        self._slope = self._prompt_slope = 0.0  # seconds per row

    @property
    def price(self) -> float:
        """What one more row costs, in accepted tokens: between 0 and 1."""
        if not self._num_steps:
            return FIRST_PRICE
        return min(1.0, max(0.0, self._slope / self._seconds_per_token))

    @property
    def _seconds_per_token(self) -> float:
        """Of decoding alone: what prompts add to a step would be paid whatever is drafted."""
        prompts = max(0.0, self._prompt_slope) * self._prompt_rows
        return max(self._seconds - prompts, _LEAST_SHARE * self._seconds) / self._tokens

    def observe(self, seconds: float, num_rows: int, num_tokens: int, num_prompt_rows: int = 0) -> None:
        """Take one decode step.

        Args:
            seconds: what it took; passed over if no step can.
            num_rows: tokens that it verified, each request's last one and its draft. Without any the step
                says nothing and is passed over.
            num_tokens: what it added to the outputs.
            num_prompt_rows: prompt tokens that were read in the same pass.
        """
        if num_rows < 1 or num_tokens < 1 or not _SHORTEST_S < seconds < _LONGEST_S:
            return
        self._num_steps = min(self._num_steps + 1, WINDOW)
        weight = 1 / self._num_steps
        keep = 1 - weight
        rows = num_rows - self._rows
        prompt = num_prompt_rows - self._prompt_rows
        late = self._within_reason(seconds - self._seconds, rows, prompt, weight)
        self._rows += weight * rows
        self._prompt_rows += weight * prompt
        self._seconds += weight * late
        self._tokens += weight * (num_tokens - self._tokens)
        self._rows_rows = keep * (self._rows_rows + weight * rows * rows)
        self._rows_prompt = keep * (self._rows_prompt + weight * rows * prompt)
        self._prompt_prompt = keep * (self._prompt_prompt + weight * prompt * prompt)
        self._rows_seconds = keep * (self._rows_seconds + weight * rows * late)
        self._prompt_seconds = keep * (self._prompt_seconds + weight * prompt * late)
        self._fit()

    def _within_reason(self, late: float, rows: float, prompt: float, weight: float) -> float:
        """``late``, seconds beyond the mean, drawn towards the fit if it is an outlier."""
        fitted = self._slope * rows + self._prompt_slope * prompt
        off = late - fitted
        least = _LEAST_SHARE * self._seconds
        limit = _OUTLIER * max(self._deviation, least)
        self._deviation += weight * (min(abs(off), _OUTLIER * limit) - self._deviation)
        if self._num_steps <= _FEW:
            return late
        return max(-self._seconds, fitted + min(limit, max(-limit, off)))  # a mean stays positive

    def _fit(self) -> None:
        """Least squares with two unknowns, the first drawn to the first price, the second to 0."""
        first = FIRST_PRICE * self._seconds_per_token
        a = self._rows_rows + _FIRST_WEIGHT
        b = self._rows_prompt
        c = self._prompt_prompt + _FIRST_WEIGHT
        right = self._rows_seconds + _FIRST_WEIGHT * first
        scale = a * c - b * b
        self._slope = (c * right - b * self._prompt_seconds) / scale
        self._prompt_slope = (a * self._prompt_seconds - b * right) / scale
