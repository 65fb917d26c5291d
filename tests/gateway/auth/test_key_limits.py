from __future__ import annotations

from contextlib import ExitStack, suppress

import pytest

from agentspec.gateway.call import RateLimits
from agentspec.gateway.errors import RateLimitError


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def retry_after(error: RateLimitError) -> int:
    return int(dict(error.headers)[b"retry-after"])


def test_a_minutes_requests_may_come_at_once_and_then_come_back_evenly() -> None:
    clock = Clock()
    limits = RateLimits(60, None, clock)
    for _ in range(60):
        with limits.admitted():
            pass
    with pytest.raises(RateLimitError, match="60 requests a minute") as refused, limits.admitted():
        pass
    assert retry_after(refused.value) == 1
    clock.now_s += 2.0
    for _ in range(2):
        with limits.admitted():
            pass
    with pytest.raises(RateLimitError), limits.admitted():
        pass


def test_a_request_that_ends_makes_room_for_another() -> None:
    limits = RateLimits(None, 2, Clock())
    with ExitStack() as running:
        for _ in range(2):
            running.enter_context(limits.admitted())
        with pytest.raises(RateLimitError, match="2 requests at a time"), limits.admitted():
            pass
    with limits.admitted():
        pass


def test_a_share_of_less_than_a_request_admits_one_now_and_then() -> None:
    clock = Clock()
    limits = RateLimits(3, None, clock)
    num_admitted = 0
    for _ in range(600):
        clock.now_s += 1.0
        with suppress(RateLimitError):
            limits._admit_share(4)
            num_admitted += 1
    assert 5 <= num_admitted <= 600 * 3 / 4 / 60 + 3  # with what was left of the whole limit


def test_a_request_without_room_takes_no_request_of_the_minute() -> None:
    limits = RateLimits(2, 1, Clock())
    with limits.admitted(), pytest.raises(RateLimitError, match="at a time"), limits.admitted():
        pass
    with limits.admitted():
        pass
