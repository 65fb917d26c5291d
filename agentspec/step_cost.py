"""The present cost of verifying one more token, learned from the decode steps.

A step verifies tokens (each request's last one and its draft), takes seconds and yields the accepted tokens.
One more draft token is worth its time if its chance of acceptance is at least

    price = seconds per further draft token * tokens per second

in accepted tokens (docs/drafting.md). This module has no clock, no engine and no request.
"""

from __future__ import annotations

FIRST_PRICE = 0.2
WINDOW = 256  # steps: the cost of a draft token fades over a few of these windows
RATE_WINDOW = 64  # the same for the token rate
_TRUST = 16.0  # in the first price: 1 / the variance of real prices around it, as a share of it
_LEAST_EVIDENCE = 0.2  # least share of the steps in the cost; the rest is the first price
_LEAST_WEIGHT = 0.01  # weight of the prior "no cost" for requests and prompt tokens
_FEW = 8  # steps before any step counts as an outlier
_OUTLIER = 3.0  # limit of a change, in deviations; larger changes are clipped
_LEAST_SHARE = 0.02  # of a step's seconds: least deviation, and least time spent on decoding
_SHORTEST_S, _LONGEST_S = 1e-9, 3600.0  # no step is shorter or longer, unless the clock was set


class StepCost:
    """The cost of a draft token. Constant time per step; stores only the last step.

    The seconds of a step change with the draft tokens, the requests and the prompt tokens. The cost is
    fitted by least squares over the changes between steps, fading over ``WINDOW`` steps. It uses changes, not
    levels: slow influences (the context, the text, the machine) affect both seconds and drafts. With little
    evidence, at the start or if the number of draft tokens hardly changes, the price is drawn to
    ``FIRST_PRICE``. At that price drafts are made, which gives evidence. The same steps give the same price.
    """

    __slots__ = (
        "_deviation",
        "_evidence",
        "_last",
        "_num_steps",
        "_products",
        "_prompt",
        "_seconds",
        "_slopes",
        "_tokens",
    )

    def __init__(self) -> None:
        self._num_steps = 0
        self._last = (0, 0, 0, 0.0)  # draft tokens, requests, prompt tokens and seconds of the last step
        self._seconds = self._tokens = self._prompt = 0.0  # means per step
        self._products = (0.0,) * 9  # means of the products of their changes: dd dr dp ds rr rp rs pp ps
        self._slopes = (0.0, 0.0, 0.0)  # seconds per draft token, request, prompt token
        self._evidence = 0.0
        self._deviation = 0.0  # mean deviation of a change of seconds from the fit

    @property
    def price(self) -> float:
        """The cost of one more draft token, in accepted tokens: between 0 and 1."""
        if not self._num_steps:
            return FIRST_PRICE
        return min(1.0, max(0.0, self._slopes[0] / self._seconds_per_token()))

    @property
    def draft_token_s(self) -> float | None:
        """Seconds per further draft token; None while the steps give too little evidence."""
        return max(0.0, self._slopes[0]) if self._evidence >= _LEAST_EVIDENCE else None

    def observe(
        self, seconds: float, num_requests: int, num_drafted: int, num_tokens: int, num_prompt_tokens: int = 0
    ) -> None:
        """Take one decode step.

        Args:
            seconds: duration of the step; ignored if implausible.
            num_requests: number of requests that decoded in it. A step without any is ignored.
            num_drafted: draft tokens that it verified.
            num_tokens: tokens it added to the outputs, at least one per request.
            num_prompt_tokens: prompt tokens processed in the same pass.
        """
        if num_requests < 1 or num_tokens < 1 or not _SHORTEST_S < seconds < _LONGEST_S:
            return
        self._num_steps = min(self._num_steps + 1, WINDOW)
        weight = 1 / self._num_steps
        if self._num_steps > 1:
            drafted, requests, prompt, last_s = self._last
            d, r, p = num_drafted - drafted, num_requests - requests, num_prompt_tokens - prompt
            s = self._within_reason(seconds - last_s, d, r, p, weight)
            self._fade(weight, d, r, p, s)
            seconds = last_s + s
        self._last = (num_drafted, num_requests, num_prompt_tokens, seconds)
        weight = max(weight, 1 / RATE_WINDOW)
        self._seconds += weight * (seconds - self._seconds)
        self._tokens += weight * (num_tokens - self._tokens)
        self._prompt += weight * (num_prompt_tokens - self._prompt)
        self._fit()

    def _seconds_per_token(self) -> float:
        """Return the seconds per token of decoding only: the cost of prompts does not depend on drafts."""
        prompts = max(0.0, self._slopes[2]) * self._prompt
        return max(self._seconds - prompts, _LEAST_SHARE * self._seconds) / self._tokens

    def _within_reason(self, change: float, d: int, r: int, p: int, weight: float) -> float:
        """Return the change of seconds, clipped towards the fit if it is an outlier."""
        per_draft, per_request, per_prompt = self._slopes
        expected = per_draft * d + per_request * r + per_prompt * p
        off = change - expected
        limit = _OUTLIER * max(self._deviation, _LEAST_SHARE * self._seconds)
        self._deviation += weight * (min(abs(off), _OUTLIER * limit) - self._deviation)
        if self._num_steps <= _FEW:
            return change
        change = expected + min(limit, max(-limit, off))
        return max(change, _LEAST_SHARE * self._seconds - self._last[3])  # the step's seconds stay positive

    def _fade(self, weight: float, d: int, r: int, p: int, s: float) -> None:
        dd, dr, dp, ds, rr, rp, rs, pp, ps = self._products
        keep = 1 - weight
        add = keep * weight
        self._products = (
            keep * dd + add * d * d,
            keep * dr + add * d * r,
            keep * dp + add * d * p,
            keep * ds + add * d * s,
            keep * rr + add * r * r,
            keep * rp + add * r * p,
            keep * rs + add * r * s,
            keep * pp + add * p * p,
            keep * ps + add * p * s,
        )

    def _fit(self) -> None:
        """Solve the least squares: eliminate prompt tokens, then requests.

        The weights keep every divisor positive. The first price is a Gaussian prior. Its weight is the noise
        of a step relative to the prior's width.
        """
        dd, dr, dp, ds, rr, rp, rs, pp, ps = self._products
        pp += _LEAST_WEIGHT
        dr -= dp * rp / pp
        rr += _LEAST_WEIGHT - rp * rp / pp
        rs -= rp * ps / pp
        first = FIRST_PRICE * self._seconds_per_token()
        noise = max(self._deviation, _LEAST_SHARE * self._seconds)
        weight = _TRUST * (noise / first) ** 2 / self._num_steps
        dd -= dp * dp / pp + dr * dr / rr
        self._evidence = dd / (dd + weight)
        dd += weight
        ds += weight * first - dp * ps / pp - dr * rs / rr
        per_draft = ds / dd
        per_request = (rs - dr * per_draft) / rr
        self._slopes = (per_draft, per_request, (ps - dp * per_draft - rp * per_request) / pp)
