"""Sessions that other engines have served: their outputs wait until a request of the session starts here."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from agentspec import Draft, Forest, ForestConfig, Source, StageKey
from agentspec.draft import Origin
from agentspec.errors import ConfigError, TokenError
from agentspec.forest.sessions import MOST_OUTPUTS, MOST_TOKENS, SESSION_BYTES, SessionPasts, session_hash

PLAN, ANSWER = StageKey("acme", ("plan",)), StageKey("acme", ("answer",))
RUN, OTHER = session_hash("acme", "run"), session_hash("acme", "other")
SECRET = np.array([1, 2, 3, 4], np.int32)
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
def test_a_session_with_live_requests_learns_at_once_and_others_at_their_next_one(is_idle):
    forest = Forest(SESSIONS)
    forest.start("first", ANSWER, ids(), session="run")
    if is_idle:
        forest.finish("first")
    learned(forest, ids(1, 2, 3, 4))
    assert forest._trees.has_past(("acme", RUN)) == is_idle
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


@pytest.mark.parametrize(
    "erase", [lambda forest: forest.forget(PLAN, SECRET), lambda forest: forest.evict_tenant("acme")]
)
def test_an_erasure_waits_while_a_session_learns_its_past(erase, monkeypatch):
    forest, is_learning, may_go_on = Forest(SESSIONS), threading.Event(), threading.Event()
    learned(forest, SECRET)
    take_past = forest._trees.take_past

    def slow(session):
        past = take_past(session)
        is_learning.set()
        assert may_go_on.wait(60.0)
        return past

    monkeypatch.setattr(forest._trees, "take_past", slow)
    mover = threading.Thread(target=drafted, args=(forest, "run", ids(9)))
    mover.start()
    assert is_learning.wait(60.0)
    eraser = threading.Thread(target=erase, args=(forest,))
    eraser.start()
    eraser.join(0.2)
    assert eraser.is_alive()  # it would miss what is on its way into the tree
    may_go_on.set()
    mover.join()
    eraser.join()
    assert len(drafted(forest, "run", SECRET[:2])) == 0


def test_a_start_that_fails_keeps_the_past(monkeypatch):
    forest = Forest(SESSIONS)
    learned(forest, ids(1, 2, 3, 4))
    with monkeypatch.context() as patch:
        patch.setattr(forest._trees, "_core", Failing())
        with pytest.raises(MemoryError):
            drafted(forest, "run", ids(1, 2))
    assert drafted(forest, "run", ids(1, 2)).token_ids.tolist() == [3, 4]


class Failing:
    """A core without memory."""

    def __getattr__(self, name):
        raise MemoryError


def test_a_past_that_finds_no_memory_costs_drafts_and_no_request(monkeypatch):
    forest = Forest(SESSIONS)
    learned(forest, ids(1, 2, 3, 4))

    def take_past(session):
        raise MemoryError

    monkeypatch.setattr(forest._trees, "take_past", take_past)
    assert len(drafted(forest, "run", ids(1, 2))) == 0
    forest.check_integrity()


def test_idle_sessions_do_not_grow():
    config = ForestConfig(tenant_limit_bytes=8 << 20, sources=(Source.SESSION, Source.STAGE))
    forest = Forest(config)
    for number in range(40):
        drafted(forest, f"s{number}", ids(1))
    indices = forest._trees._sessions.indices("acme")
    before = [forest._core.index_bytes(index) for index in indices]
    for number in range(200):
        tokens = np.random.default_rng(number).integers(0, 1000, 300).astype(np.int32)
        learned(forest, tokens, session_hash("acme", f"s{number % 40}"))
    assert [forest._core.index_bytes(index) for index in indices] == before
    assert forest._trees.past_bytes() <= config.total_limit_bytes // 64
    assert forest.memory_bytes() == forest._core.memory_bytes() + forest._trees.past_bytes()


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
    for num_tokens in (100, MOST_TOKENS - 200, 100, 50, MOST_TOKENS + 1, 0):
        add(pasts, "a", num_tokens)
    for _ in range(MOST_OUTPUTS + 5):
        add(pasts, "b", 1)
    assert kept(pasts, "a", "a", "b") == [[MOST_TOKENS - 200, 100, 50], [], [1] * MOST_OUTPUTS]
    assert pasts.num_bytes == 0


def test_the_latest_sessions_stay_within_the_bytes():
    pasts = SessionPasts(6500, 60.0)
    for name in "abc":
        add(pasts, name, 200)
    add(pasts, "a", 1)
    add(pasts, "d", 200, tenant="rival")
    assert kept(pasts, *"abc") == [[200, 1], [], [200]]
    pasts.drop_tenant("rival")
    assert pasts.num_bytes == 0


def test_a_session_without_new_outputs_expires_whatever_comes():
    clock = Clock()
    pasts = SessionPasts(1 << 20, 60.0, clock)
    for name in "ab":
        add(pasts, name, 5)
    clock.now_s = 50.0
    add(pasts, "a", 6)
    clock.now_s = 61.0
    add(pasts, "c", 1, tenant="rival")
    assert ("acme", b"b") not in pasts
    assert kept(pasts, "a", "b") == [[5, 6], []]
    clock.now_s = 200.0
    pasts.drop_old()
    assert pasts.num_bytes == 0
