from __future__ import annotations

from contextlib import ExitStack

import pytest
from live import chat_body, client_of, post, serving_engine
from scripted import ScriptedEngine

from agentspec.gateway import ApiKeys
from agentspec.gateway.auth.api_keys import ApiKey, digest_of
from agentspec.gateway.errors import RateLimitError
from agentspec.gateway.principal import RateLimits


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def use(limits: RateLimits) -> None:
    with limits.admitted():
        pass


def test_a_minutes_requests_may_come_at_once_and_then_as_time_goes_by() -> None:
    clock = Clock()
    limits = RateLimits(3, None, clock)
    for _ in range(3):
        use(limits)
    with pytest.raises(RateLimitError, match="3 requests a minute") as caught:
        use(limits)
    assert caught.value.headers == ((b"retry-after", b"20"),)
    clock.now_s += 20
    use(limits)
    with pytest.raises(RateLimitError):
        use(limits)
    clock.now_s += 3600
    for _ in range(3):
        use(limits)
    with pytest.raises(RateLimitError):
        use(limits)


def test_so_many_at_a_time() -> None:
    limits = RateLimits(None, 2, Clock())
    with ExitStack() as stack:
        stack.enter_context(limits.admitted())
        stack.enter_context(limits.admitted())
        with pytest.raises(RateLimitError, match="2 requests at a time"):
            use(limits)
    use(limits)


def test_a_client_is_told_when_to_come_back_and_others_are_not_touched() -> None:
    keys = ApiKeys([ApiKey(digest_of("ka"), "acme", 1, None), ApiKey(digest_of("kb"), "bolt", None, 1)])
    engine = ScriptedEngine(is_endless=True)
    with serving_engine(engine, keys=keys) as root, client_of(root, api_key="kb") as client:
        with client.chat.completions.create(**chat_body(stream=True)) as stream:
            next(iter(stream))
            busy = post(root, chat_body(), authorization="Bearer kb")
        engine.is_endless = False
        assert post(root, chat_body(), authorization="Bearer ka").status_code == 200
        often = post(root, chat_body(), authorization="Bearer ka")
    for answer in (busy, often):
        assert (answer.status_code, answer.json()["error"]["type"]) == (429, "rate_limit_error")
        assert answer.json()["error"]["code"] == "rate_limit_exceeded"
    assert busy.headers["retry-after"] == "1"
    assert 55 <= int(often.headers["retry-after"]) <= 60


def test_a_key_that_stays_the_same_keeps_its_state() -> None:
    key = ApiKey(digest_of("ka"), "acme", 1, None)
    before = ApiKeys([key])
    use(before.principal("ka").limits)
    with pytest.raises(RateLimitError):
        use(ApiKeys([key], before).principal("ka").limits)
    use(ApiKeys([ApiKey(digest_of("ka"), "acme", 2, None)], before).principal("ka").limits)
