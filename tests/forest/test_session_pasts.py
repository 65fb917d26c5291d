"""Sessions that other engines have served: their outputs wait until a request of the session starts here."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from agentspec import Draft, Forest, ForestConfig, Source, StageKey
from agentspec.draft import Origin
from agentspec.errors import ConfigError, TokenError
from agentspec.forest.session_pasts import MOST_TOKENS, SessionPasts
from agentspec.forest.sessions import SESSION_BYTES, session_hash

PLAN, ANSWER = StageKey("acme", ("plan",)), StageKey("acme", ("answer",))
RUN, OTHER = session_hash("acme", "run"), session_hash("acme", "other")
SESSIONS = ForestConfig(sources=(Source.SESSION, Source.STAGE))


def ids(*tokens: int) -> np.ndarray:
    return np.array(tokens, np.int32)


def learned(forest: Forest, output: np.ndarray, session: bytes = RUN, stage: StageKey = PLAN) -> None:
    forest.learn(stage, output, 1, Origin.FLEET, session)


def drafted(forest: Forest, session: str | None, said: np.ndarray, stage: StageKey = ANSWER) -> Draft:
    """Return the draft of a new request that has said some tokens."""
    forest.start("asked", stage, ids(), session=session, learn=False)
    try:
        return forest.step([("asked", said)])[0]
    finally:
        forest.finish("asked")


def test_a_session_that_moves_here_brings_its_outputs():
    forest = Forest(SESSIONS)
    learned(forest, ids(1, 2, 3, 4))
    learned(forest, ids(5, 6, 7, 8))
    for said, expected in ((ids(1, 2), [3, 4]), (ids(5, 6), [7, 8])):
        draft = drafted(forest, "run", said)
        assert draft.token_ids.tolist() == expected
        assert draft.source == Source.SESSION
        assert draft.origins is not None
        assert set(draft.origins.tolist()) == {Origin.FLEET}
    assert len(drafted(forest, "other", ids(1, 2))) == 0
    assert len(drafted(forest, None, ids(1, 2))) == 0


@pytest.mark.parametrize("is_idle", [True, False])
def test_a_session_that_is_here_learns_at_once(is_idle):
    forest = Forest(SESSIONS)
    forest.start("first", ANSWER, ids(), session="run")
    if is_idle:
        forest.finish("first")
    learned(forest, ids(1, 2, 3, 4))
    assert forest._trees._pasts.take(("acme", RUN)) == []
    assert drafted(forest, "run", ids(1, 2)).token_ids.tolist() == [3, 4]
    forest.check_integrity()


def test_an_output_without_a_session_joins_no_session():
    forest = Forest(SESSIONS)
    learned(forest, ids(1, 2, 3, 4), session=b"")
    assert len(drafted(forest, "run", ids(1, 2))) == 0
    assert drafted(forest, "run", ids(1, 2), PLAN).source == Source.STAGE


def test_a_forest_without_session_trees_keeps_no_past():
    forest = Forest(ForestConfig(sources=(Source.STAGE,)))
    learned(forest, ids(1, 2, 3, 4))
    assert forest._trees._pasts.take(("acme", RUN)) == []


def test_tenants_and_sessions_do_not_mix():
    forest = Forest(SESSIONS)
    learned(forest, ids(1, 2, 3, 4))
    assert len(drafted(forest, "run", ids(1, 2), StageKey("rival", ("answer",)))) == 0
    assert session_hash("acme", "run") != session_hash("rival", "run")
    assert {len(session_hash("acme", name)) for name in ("", "run", "\udc80 ä" * 99)} == {SESSION_BYTES}


@pytest.mark.parametrize("has_moved", [False, True])
def test_what_is_forgotten_leaves_sessions_too(has_moved):
    forest = Forest(SESSIONS)
    learned(forest, ids(1, 2, 3, 4))
    learned(forest, ids(1, 2, 9), session=OTHER)
    if has_moved:
        assert len(drafted(forest, "run", ids(1, 2))) > 0
    forest.forget(PLAN, ids(1, 2, 3, 4))
    assert len(drafted(forest, "run", ids(1, 2))) == 0
    assert forest._trees._pasts.take(("acme", OTHER)) == []  # an erasure forgets all of the tenant's


def test_an_evicted_tenant_has_no_past():
    forest = Forest(SESSIONS)
    learned(forest, ids(1, 2, 3, 4))
    forest.evict_tenant("acme")
    assert len(drafted(forest, "run", ids(1, 2))) == 0


def test_a_refused_output_is_in_no_session():
    forest = Forest(SESSIONS)
    with pytest.raises(TokenError):
        learned(forest, ids(1, -2, 3))
    with pytest.raises(ConfigError):
        forest.learn(PLAN, ids(1, 2), 0, Origin.FLEET, RUN)
    assert forest._trees._pasts.take(("acme", RUN)) == []


def test_erasures_beside_sessions_that_move_leave_nothing():
    forest = Forest(SESSIONS)
    secret = ids(1, 2, 3, 4)
    for number in range(200):
        learned(forest, secret, session_hash("acme", f"s{number}"))
        mover = threading.Thread(target=drafted, args=(forest, f"s{number}", ids(9)))
        mover.start()
        forest.forget(PLAN, secret)
        mover.join()
        assert len(drafted(forest, f"s{number}", ids(1, 2))) == 0


# ---- limits ----


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def kept(pasts: SessionPasts, *names: str) -> list[list[int]]:
    return [[len(tokens) for tokens in pasts.take(("acme", name.encode()))] for name in names]


def add(pasts: SessionPasts, name: str, num_tokens: int, tenant: str = "acme") -> None:
    pasts.add((tenant, name.encode()), np.zeros(num_tokens, np.int32))


def test_the_latest_tokens_of_a_session_stay():
    pasts = SessionPasts(1 << 20, 60.0)
    for num_tokens in (100, MOST_TOKENS - 200, 100, 50, MOST_TOKENS + 1):
        add(pasts, "a", num_tokens)
    assert kept(pasts, "a", "a") == [[MOST_TOKENS - 200, 100, 50], []]


def test_a_tenant_keeps_the_latest_sessions_within_its_bytes():
    pasts = SessionPasts(3000, 60.0)
    for name in "abc":
        add(pasts, name, 200)
    add(pasts, "a", 1)
    add(pasts, "d", 200)
    add(pasts, "a", 200, tenant="rival")
    assert kept(pasts, *"abcd") == [[200, 1], [], [], [200]]


def test_a_session_without_new_outputs_expires():
    clock = Clock()
    pasts = SessionPasts(1 << 20, 60.0, clock)
    for name in "ab":
        add(pasts, name, 5)
    clock.now_s = 50.0
    add(pasts, "a", 6)
    clock.now_s = 61.0
    assert kept(pasts, "a", "b") == [[5, 6], []]
    assert pasts._tenants["acme"].num_bytes == 0
