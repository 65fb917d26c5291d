"""The forest's contracts: sources, isolation, errors without effect, budgets, threads."""

from __future__ import annotations

import contextlib
import re
import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from agentspec import Draft, DraftConfig, Forest, ForestConfig, Source, StageKey
from agentspec._native import MODEL_BYTES, ForestCore
from agentspec.errors import (
    ConfigError,
    DuplicateRequestError,
    StageError,
    TokenError,
    UnknownRequestError,
)
from agentspec.proposer import Proposer

EXTRACT = StageKey.parse("agentic_sql/extract")
COMBINE = StageKey.parse("agentic_sql/combine")
OTHER = StageKey.parse("chat")


def ids(*tokens: int) -> np.ndarray:
    return np.array(tokens, np.int32)


def text(seed: int, length: int, vocabulary: int = 1000) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, vocabulary, length).astype(np.int32)


def run_request(
    forest: Forest, request_id: str, stage: StageKey, output: np.ndarray, **settings: object
) -> None:
    forest.start(request_id, stage, ids(7, 8), **settings)
    for begin in range(0, len(output), 3):
        forest.step([(request_id, output[begin : begin + 3])])
    forest.finish(request_id)


def snapshot(forest: Forest, request_id: str) -> tuple[object, ...]:
    draft = forest.draft(request_id)
    return forest.stats(), forest.stats(EXTRACT), draft.token_ids.tolist(), draft.score, draft.source


def assert_same(draft: Draft, other: Draft) -> None:
    assert draft.token_ids.tolist() == other.token_ids.tolist()
    assert draft.parents.tolist() == other.parents.tolist()
    assert draft.probs.tolist() == other.probs.tolist()
    assert (draft.score, draft.match_length, draft.source) == (other.score, other.match_length, other.source)


# ---- drafts behind assumed tokens ----


@pytest.mark.parametrize("rule", ["paper", "learned"])
def test_a_draft_after_assumed_tokens_is_that_after_real_ones(rule: str) -> None:
    """The tokens of an output are all different, so a request's own tree proposes nothing."""
    rng, draft = np.random.default_rng(4), DraftConfig(rule=rule, min_prob=0.0)
    outputs = [rng.permutation(600)[:80].astype(np.int32) for _ in range(20)]
    assuming, taking = Forest(), Forest()
    for forest in (assuming, taking):
        for output in outputs:
            run_request(forest, "past", EXTRACT, output, draft=draft)
        forest.start("r", EXTRACT, ids(601), draft=draft, learn=False)
    num_drafted = 0
    for _ in range(200):
        output, begin = outputs[rng.integers(20)], rng.integers(60)
        said, assumed = output[begin : begin + 4], output[begin + 4 : begin + rng.integers(4, 9)]
        for forest in (assuming, taking):
            forest.observe("r", said)
        found = assuming.draft_after([("r", assumed)])[0]
        taking.observe("r", assumed)
        real = taking.draft("r")
        assert_same(found, real)
        num_drafted += len(found) > 0
        assuming.observe("r", assumed)
        assuming.draft("r")  # the learned rule then learns the same in both
    assert num_drafted > 150


def test_assumed_tokens_change_nothing() -> None:
    forest = Forest()
    run_request(forest, "past", EXTRACT, text(1, 60))
    forest.start("r", EXTRACT, text(1, 20))
    before = snapshot(forest, "r")
    forest.draft_after([("r", text(1, 30)[20:])])
    assert snapshot(forest, "r") == before
    forest.check_integrity()
    for error, assumed in (
        (UnknownRequestError, [("x", ids(1))]),
        (DuplicateRequestError, [("r", ids(1)), ("r", ids(2))]),
        (TokenError, [("r", ids(-1))]),
        (ConfigError, ["r"]),
    ):
        with pytest.raises(error):
            forest.draft_after(assumed)
    assert snapshot(forest, "r") == before


# ---- sources ----


def test_the_prompt_drafts_for_the_output():
    forest: Proposer = Forest()
    forest.start("a", EXTRACT, ids(1, 2, 3, 4, 5, 6))
    (draft,) = forest.step([("a", ids(9, 1, 2))])
    assert draft.token_ids.tolist() == [3, 4, 5, 6, 9, 1, 2]  # MAX_SPEC is 8, but the text ends here
    assert draft.token_ids.dtype == draft.parents.dtype == np.int32
    assert draft.probs.dtype == np.float32
    assert (draft.is_chain, draft.source, draft.match_length, draft.score) == (True, Source.REQUEST, 2, 7.0)


def test_a_prediction_drafts_for_the_output():
    forest = Forest()
    forest.start("a", EXTRACT, ids(1, 2), prediction_ids=ids(20, 21, 22, 23))
    assert forest.step([("a", ids(20, 21))])[0].token_ids.tolist() == [22, 23]


def test_a_running_output_drafts_for_others_at_once():
    forest = Forest()
    forest.start("a", EXTRACT, ids(1))
    forest.observe("a", ids(20, 21, 22, 23, 24))
    forest.start("b", EXTRACT, ids(2))
    assert forest.step([("b", ids(20, 21))])[0].token_ids.tolist() == [22, 23, 24]


def test_prompts_stay_out_of_shared_trees():
    forest = Forest()
    forest.start("a", EXTRACT, ids(20, 21, 22, 23, 24))
    forest.finish("a")
    forest.start("b", EXTRACT, ids(1))
    assert len(forest.step([("b", ids(20, 21))])[0]) == 0


@pytest.mark.parametrize(
    ("stage", "session", "source"),
    [
        (EXTRACT, "s", Source.SESSION),
        (EXTRACT, None, Source.STAGE),
        (COMBINE, None, Source.WORKFLOW),
        (OTHER, None, Source.TENANT),
        (OTHER, "s", Source.SESSION),
    ],
)
def test_equal_drafts_come_from_the_most_specific_source(stage, session, source):
    forest = Forest()
    run_request(forest, "a", EXTRACT, ids(20, 21, 22, 23, 24), session="s")
    forest.start("b", stage, ids(1), session=session)
    (draft,) = forest.step([("b", ids(20, 21))])
    assert (draft.token_ids.tolist(), draft.source) == ([22, 23, 24], source)


def test_the_best_score_wins_over_the_more_specific_source():
    forest = Forest()
    forest.learn(COMBINE, ids(20, 21, 22, 23, 24, 25))
    forest.start("b", EXTRACT, ids(21, 40, 9, 21, 41, 9))
    (draft,) = forest.step([("b", ids(20, 21))])
    assert (draft.token_ids.tolist(), draft.source) == ([22, 23, 24, 25], Source.WORKFLOW)


def test_tenants_are_walls():
    forest = Forest()
    for session in (None, "s"):
        run_request(forest, "a", EXTRACT, ids(20, 21, 22, 23, 24), session=session)
    forest.start("b", StageKey("rival", EXTRACT.path), ids(1), session="s")
    assert len(forest.step([("b", ids(20, 21))])[0]) == 0
    assert forest.stats(StageKey("rival", EXTRACT.path)).num_tokens == 2


# ---- learning and settings ----


def test_learn_false_at_start_enters_no_shared_tree():
    forest = Forest()
    forest.start("a", EXTRACT, ids(1), session="s", learn=False)
    forest.observe("a", ids(20, 21, 22, 23))
    forest.start("b", EXTRACT, ids(2), session="s")
    assert len(forest.step([("b", ids(20, 21))])[0]) == 0
    forest.finish("a")
    assert len(forest.draft("b")) == 0


def test_learn_false_at_finish_withdraws_the_output():
    forest = Forest()
    forest.start("a", EXTRACT, ids(1), session="s")
    forest.observe("a", ids(20, 21, 22, 23))
    forest.start("b", EXTRACT, ids(2), session="s")
    assert len(forest.step([("b", ids(20, 21))])[0]) == 2
    forest.finish("a", learn=False)
    assert len(forest.draft("b")) == 0
    forest.check_integrity()


@pytest.mark.parametrize("config", [DraftConfig(mode="off"), DraftConfig(max_tokens=0)])
def test_a_request_without_drafts_still_learns(config):
    forest = Forest()
    forest.start("a", EXTRACT, ids(1, 2, 3), draft=config)
    assert len(forest.step([("a", ids(1, 2, 20, 21, 22))])[0]) == 0
    forest.start("b", EXTRACT, ids(5))
    assert forest.step([("b", ids(20, 21))])[0].token_ids.tolist() == [22]


def test_limits_of_the_draft():
    forest = Forest()
    forest.learn(EXTRACT, np.arange(100, dtype=np.int32))
    settings = {
        "max": DraftConfig(max_tokens=5),
        "alpha": DraftConfig(alpha=1.5),
        "match": DraftConfig(min_match=3),
    }
    for name, config in settings.items():
        forest.start(name, EXTRACT, ids(), draft=config)
        forest.observe(name, ids(60, 10, 11))
    assert len(forest.draft("max")) == 5
    assert len(forest.draft("max", 2)) == 2
    assert len(forest.draft("alpha")) == 3
    assert len(forest.draft("match")) == 0


# ---- errors change nothing ----


@pytest.mark.parametrize(
    ("updates", "error"),
    [
        ([("a", ids(3)), ("ghost", ids(4))], UnknownRequestError),
        ([("a", ids(3)), ("a", ids(4))], DuplicateRequestError),
        ([("a", ids(3)), ("b", ids(-1))], TokenError),
        ([("a", ids(3)), ("b", np.array([4], np.int64))], TokenError),
        ([("a", ids(3)), ("b", np.array([[4]], np.int32))], TokenError),
        ([("a", ids(3)), ("b", [4])], TokenError),
    ],
)
def test_a_wrong_step_changes_nothing(updates, error):
    forest = Forest()
    for request_id in ("a", "b"):
        forest.start(request_id, EXTRACT, ids(1, 2, 3, 1, 2))
    before = snapshot(forest, "a")
    with pytest.raises(error, match=r"."):
        forest.step(updates)
    assert snapshot(forest, "a") == before


def test_other_wrong_calls_change_nothing():
    forest = Forest()
    forest.start("a", EXTRACT, ids(1, 2, 3, 1, 2))
    before = snapshot(forest, "a")
    with pytest.raises(DuplicateRequestError, match="'a'"):
        forest.start("a", EXTRACT, ids(1))
    with pytest.raises(TokenError, match="-5"):
        forest.start("b", OTHER, ids(1, -5), session="s")
    with pytest.raises(TokenError, match="int64"):
        forest.start("b", OTHER, ids(1), prediction_ids=np.array([1]))
    for call in (forest.finish, forest.draft, lambda name: forest.observe(name, ids(1))):
        with pytest.raises(UnknownRequestError, match="'b'"):
            call("b")
    with pytest.raises(TokenError, match="-1"):
        forest.learn(EXTRACT, ids(4, -1))
    with pytest.raises(ConfigError, match="-1"):
        forest.step([("a", ids(3))], -1)
    assert snapshot(forest, "a") == before


@pytest.mark.parametrize(
    ("config", "name", "value"),
    [
        (ForestConfig, "total_limit_bytes", 1e9),
        (ForestConfig, "stage_limit_bytes", 4095),
        (ForestConfig, "tenant_limit_bytes", 1 << 70),
        (ForestConfig, "depth", 10.5),
        (ForestConfig, "threads", "2"),
        (ForestConfig, "max_trees", 3),
        (ForestConfig, "max_sessions", 0),
        (ForestConfig, "session_ttl_s", float("nan")),
        (ForestConfig, "session_ttl_s", float("inf")),
        (DraftConfig, "mode", "fast"),
        (DraftConfig, "max_tokens", 1.5),
        (DraftConfig, "alpha", float("inf")),
        (DraftConfig, "alpha", float("nan")),
        (DraftConfig, "alpha", None),
        (DraftConfig, "min_match", 1 << 21),
        (DraftConfig, "min_prob", float("nan")),
        (DraftConfig, "doubt", float("inf")),
        (DraftConfig, "doubt", -1),
    ],
)
def test_a_setting_that_is_refused_is_named_with_its_value(config, name, value):
    with pytest.raises(ConfigError, match=f"^{name} must be .*not {re.escape(repr(value))}$"):
        config(**{name: value})


def test_an_array_that_is_not_aligned_is_refused():
    forest = Forest()
    forest.start("a", EXTRACT, ids(1))
    skewed = np.frombuffer(b"\0" + ids(1, 2, 3).tobytes(), np.uint8)[1:].view(np.int32)
    for call in (
        lambda: forest.start("b", EXTRACT, skewed),
        lambda: forest.observe("a", skewed),
        lambda: forest.step([("a", skewed)]),
        lambda: forest.learn(EXTRACT, skewed),
    ):
        with pytest.raises(TokenError, match="aligned"):
            call()


def test_a_step_takes_any_iterable():
    forest = Forest()
    forest.start("a", EXTRACT, ids(1, 2, 3, 1, 2))
    assert len(forest.step(update for update in [("a", ids())])) == 1
    with pytest.raises(TokenError, match="int64"):
        forest.step(update for update in [("a", np.array([1]))])
    with pytest.raises(ConfigError, match="3"):
        forest.step([("a", ids(), 3)])
    with pytest.raises(ConfigError, match=r"1\.5"):
        forest.step([], 1.5)
    with pytest.raises(UnknownRequestError, match="ghost"):
        forest.step(update for update in [("ghost", ids())])


@pytest.mark.parametrize(
    ("wrong", "error"),
    [({"session": [1]}, ConfigError), ({"session": 7}, ConfigError), ({"stage": "a/b"}, StageError)],
)
def test_a_start_that_is_refused_leaves_no_name_behind(wrong, error):
    forest = Forest()
    with pytest.raises(error, match=re.escape(repr(next(iter(wrong.values()))))):
        forest.start("a", **{"stage": EXTRACT, "prompt_ids": ids(1), **wrong})
    forest.start("a", EXTRACT, ids(1))


class Failing:
    """A core with one call that fails."""

    def __init__(self, core: ForestCore, name: str, error: Exception) -> None:
        self._core, self._name, self._error = core, name, error

    def __getattr__(self, name: str) -> object:
        if name == self._name:
            raise self._error
        return getattr(self._core, name)


def replace_core(forest: Forest, core: ForestCore | Failing) -> None:
    forest._core = forest._trees._core = core


def test_names_go_also_where_the_core_runs_out_of_memory():
    forest = Forest()
    core = forest._core
    for call in ("create_index", "start"):
        replace_core(forest, Failing(core, call, MemoryError()))
        with pytest.raises(MemoryError):
            forest.start("a", EXTRACT, ids(1), session="s")
        replace_core(forest, core)
        forest.start("a", EXTRACT, ids(1), session="s")
        replace_core(forest, Failing(core, "finish", MemoryError()))
        with pytest.raises(MemoryError):
            forest.finish("a")
        replace_core(forest, core)
        with pytest.raises(UnknownRequestError):
            forest.finish("a")


def test_a_request_that_the_core_does_not_know_yet_is_named():
    forest = Forest()
    forest.start("a", EXTRACT, ids(1))
    forest._core.finish(forest._requests["a"].number, True)  # as if start() had not reached the core yet
    for call in (forest.wait, forest.finish, lambda name: forest.observe(name, ids(1))):
        with pytest.raises(UnknownRequestError, match="'a'"):
            call("a")
    with pytest.raises(UnknownRequestError, match="another thread"):
        forest.draft("a")


def test_a_finished_id_can_be_used_again():
    forest = Forest()
    for _ in range(2):
        run_request(forest, "a", EXTRACT, ids(1, 2, 3))
    with pytest.raises(UnknownRequestError):
        forest.finish("a")


def test_arrays_that_are_not_contiguous_are_taken():
    forest = Forest()
    forest.start("a", EXTRACT, np.arange(20, dtype=np.int32)[::2])
    forest.observe("a", np.array([0, 99, 2, 99], np.int32)[::2])
    assert forest.draft("a").token_ids[0] == 4


# ---- memory ----


def test_evict_frees_the_stage_and_leaves_the_others():
    forest = Forest()
    forest.learn(EXTRACT, text(1, 20000))
    forest.learn(COMBINE, text(2, 1000))
    forest.start("a", EXTRACT, ids(1))
    held, stage = forest.memory_bytes(), forest.memory_bytes(EXTRACT)
    assert stage > 20000 * 4
    forest.evict(EXTRACT)
    assert forest.memory_bytes(EXTRACT) == 0
    assert forest.memory_bytes() <= held - stage + 1024
    assert forest.memory_bytes(COMBINE) > 1000 * 4
    forest.step([("a", ids(5, 6, 7))])  # a live request continues
    forest.finish("a")
    forest.learn(EXTRACT, ids(20, 21, 22))
    assert forest.stats(EXTRACT).num_tokens == 3
    forest.check_integrity()


def held(forest: Forest, stage: StageKey = EXTRACT) -> tuple[int, int]:
    stats = forest.stats(stage)
    return stats.num_sequences, stats.num_tokens


def test_an_output_can_be_learned_with_its_uses():
    forest = Forest()
    forest.learn(EXTRACT, ids(1, 2, 3), 5)
    assert held(forest) == (5, 15)
    for wrong in (0, 65_536):
        with pytest.raises(ConfigError, match=f"not {wrong}"):
            forest.learn(EXTRACT, ids(1), wrong)


def test_an_output_is_forgotten_by_all_trees_that_hold_it():
    forest = Forest()
    forest.learn(EXTRACT, ids(1, 2, 3), 5)
    forest.learn(EXTRACT, ids(1, 2, 4))
    run_request(forest, "a", EXTRACT, ids(1, 2, 3), session="run")
    before = forest.stats()
    forest.forget(EXTRACT, ids(1, 2, 3))
    forest.check_integrity()
    assert held(forest) == (1, 3)
    assert (before.num_sequences, forest.stats().num_sequences) == (
        3 * 7 + 1,
        3,
    )  # the session's tree is empty
    forest.start("b", EXTRACT, ids(9), session="run")
    (draft,) = forest.step([("b", ids(1, 2))])
    assert draft.token_ids.tolist() == [4]


def test_other_tenants_and_running_requests_keep_their_outputs():
    forest = Forest()
    elsewhere = replace(EXTRACT, tenant="other")
    for stage in (EXTRACT, elsewhere):
        forest.learn(stage, ids(1, 2, 3))
    forest.start("a", EXTRACT, ids(7))
    forest.observe("a", ids(1, 2, 3))
    forest.forget(EXTRACT, ids(1, 2, 3))
    assert held(forest) == (1, 3)
    forest.finish("a")
    assert held(forest, elsewhere) == (1, 3)
    forest.forget(EXTRACT, ids(1, 2, 3))
    assert held(forest) == (0, 0)
    forest.forget(EXTRACT, ids())
    forest.forget(StageKey.parse("unknown", "nobody"), ids(1))
    with pytest.raises(TokenError):
        forest.forget(EXTRACT, ids(-1))


def test_what_is_left_of_an_output_near_the_budget_is_forgotten_with_it():
    forest = Forest(ForestConfig(stage_limit_bytes=1 << 20, sources=(Source.STAGE,)))
    outputs = [text(seed, 3000) for seed in range(12)]
    for output in outputs:
        forest.learn(EXTRACT, output)
    assert 0 < held(forest)[1] < 12 * 3000
    for output in outputs:
        forest.forget(EXTRACT, output)
        forest.check_integrity()
    assert held(forest) == (0, 0)


def test_a_tenant_is_evicted_while_its_requests_go_on():
    forest = Forest()
    elsewhere = replace(EXTRACT, tenant="other")
    forest.learn(elsewhere, ids(1, 2, 3))
    run_request(forest, "a", EXTRACT, ids(1, 2, 3), session="idle")
    forest.start("b", EXTRACT, ids(7), session="busy")
    forest.observe("b", ids(1, 2, 3))
    forest.evict_tenant(EXTRACT.tenant)
    forest.check_integrity()
    assert held(forest) == (0, 0)
    assert forest.stats().num_sequences == 3  # of the other tenant: its stage, workflow and own tree
    forest.observe("b", ids(4))
    forest.finish("b")
    assert held(forest) == (0, 0)
    run_request(forest, "c", EXTRACT, ids(1, 2, 3), session="busy")
    assert held(forest) == (1, 3)
    forest.evict_tenant("nobody")
    forest.check_integrity()


def test_outputs_are_forgotten_while_others_are_learned():
    forest = Forest()
    forgotten, kept = text(1, 5000), text(2, 5000)

    def learn() -> None:
        for _ in range(20):
            forest.learn(EXTRACT, kept)

    thread = threading.Thread(target=learn)
    thread.start()
    for _ in range(10):
        forest.learn(EXTRACT, forgotten)
        forest.forget(EXTRACT, forgotten)
    thread.join()
    forest.check_integrity()
    assert held(forest) == (20, 20 * 5000)


def test_a_stage_stays_within_its_budget_and_forgets_the_oldest():
    limit = 256 << 10
    forest = Forest(ForestConfig(stage_limit_bytes=limit))
    for seed in range(60):
        run_request(forest, "a", EXTRACT, text(seed, 500))
        assert forest.memory_bytes(EXTRACT) <= limit
    forest.check_integrity()
    assert 0 < forest.stats(EXTRACT).num_sequences < 60
    for seed, is_known in ((0, False), (59, True)):
        forest.start("b", EXTRACT, ids())
        (draft,) = forest.step([("b", text(seed, 500)[:4])])
        assert (len(draft) == 16) == is_known
        forest.finish("b", learn=False)


@pytest.mark.parametrize("name", ["tenant_limit_bytes", "total_limit_bytes"])
def test_trees_share_the_budget_of_tenant_and_forest(name):
    limit = 400 << 10
    forest = Forest(ForestConfig(**{name: limit}))
    for seed in range(40):
        stage = StageKey("acme", (f"stage{seed % 5}",))
        run_request(forest, "a", stage, text(seed, 400), session=f"s{seed % 3}")
        assert forest.memory_bytes() <= limit
    forest.check_integrity()
    assert forest.stats().num_tokens > 1000


def test_the_trees_of_stages_give_way_to_wider_ones():
    forest = Forest(ForestConfig(tenant_limit_bytes=1 << 20))
    for i in range(2000):
        forest.learn(EXTRACT if i % 2 else COMBINE, np.arange(20 * i, 20 * i + 20, dtype=np.int32))
    held = {
        path: forest.memory_bytes(StageKey.parse(path)) for path in ("agentic_sql", "agentic_sql/extract")
    }
    assert held["agentic_sql/extract"] * 4 < held["agentic_sql"], held
    assert forest.memory_bytes() <= 1 << 20
    forest.check_integrity()


def test_how_deep_a_tenants_stages_are_is_not_held_against_it():
    deep, flat = StageKey("a", ("x", "y", "z")), StageKey("b", ("all",))
    forest = Forest(ForestConfig(total_limit_bytes=2 << 20))
    for i in range(100):
        forest.learn(deep, np.arange(20 * i, 20 * i + 20, dtype=np.int32))
    held = forest.stats(deep)
    for i in range(3000):
        forest.learn(flat, np.arange(20 * i, 20 * i + 20, dtype=np.int32))
    assert forest.memory_bytes() > 14 << 17  # the forest is full, and other stages hold more
    assert forest.stats(deep) == held


def test_what_a_tenant_holds_at_its_limit_does_not_depend_on_the_others():
    def learn(forest: Forest, stage: StageKey, seed: int) -> None:
        for begin in range(0, 1200, 400):
            forest.learn(stage, text(seed, 1200)[begin : begin + 400])

    config = ForestConfig(tenant_limit_bytes=256 << 10)
    together = Forest(config)
    stages = [StageKey(f"tenant{i}", EXTRACT.path) for i in range(6)]
    for seed in range(6):
        for i, stage in enumerate(stages):
            learn(together, stage, seed + i)
    for i, stage in enumerate(stages):
        alone = Forest(config)
        for seed in range(6):
            learn(alone, stage, seed + i)
        assert together.stats(stage) == alone.stats(stage)
        assert alone.stats(stage).num_tokens < 6 * 1200
    together.check_integrity()


def test_live_outputs_beyond_the_budget_are_not_learned():
    forest = Forest(ForestConfig(stage_limit_bytes=4096))
    forest.start("a", EXTRACT, ids(1))
    for seed in range(20):
        forest.step([("a", text(seed, 50))])
        assert forest.memory_bytes(EXTRACT) <= 4096
    forest.check_integrity()
    forest.finish("a")


def test_a_stage_per_call_does_not_grow_the_forest():
    forests = [Forest(ForestConfig(max_trees=number)) for number in (20, 1000)]
    for forest in forests:
        run_request(forest, "r", StageKey("rival", ("x",)), ids(20, 21, 22, 23))
        forest.start("live", StageKey("acme", ("w", "first")), ids(1))
        for i in range(200):
            run_request(forest, "a", StageKey("acme", ("w", f"call{i}")), ids(30, 31, 32, i))
            run_request(forest, "a", StageKey("acme", ("often",)), ids(40, 41, 42))
            forest.step([("live", ids(50 + i))])  # continues without its own tree
        forest.check_integrity()
    forest = forests[0]
    assert forest.memory_bytes() < forests[1].memory_bytes()
    # an output counts in each tree: the 20 are w, often, the tenant's and those of the last 17 calls
    assert forests[1].stats().num_sequences - forest.stats().num_sequences == 1 + 200 - 17
    assert forest.memory_bytes(StageKey("acme", ("w", "first"))) == 0
    assert forest.memory_bytes(StageKey("acme", ("w", "call0"))) == 0
    assert forest.stats(StageKey("acme", ("w", "call199"))).num_sequences == 1
    assert forest.stats(StageKey("acme", ("often",))).num_sequences == 200  # a stage in use stays
    assert forest.stats(StageKey("rival", ("x",))).num_sequences == 1  # another tenant's stays too
    forest.start("b", StageKey("acme", ("w", "call7")), ids(1))
    assert forest.step([("b", ids(30, 31))])[0].source == Source.WORKFLOW


def test_idle_sessions_expire(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("agentspec.forest.sessions.time.monotonic", lambda: clock[0])
    forest = Forest(ForestConfig(session_ttl_s=10))
    forest.start("live", OTHER, ids(1), session="kept")
    run_request(forest, "a", StageKey("rival", ("x",)), ids(20, 21, 22, 23), session="s")
    sizes = forest.stats().num_tokens
    clock[0] = 11.0
    forest.start("b", OTHER, ids(1), session="kept")
    assert forest.stats().num_tokens == sizes - 4
    forest.observe("live", ids(30, 31, 32))
    assert forest.step([("b", ids(30, 31))])[0].source == Source.SESSION


def test_idle_sessions_hold_an_eighth_of_the_budget():
    limit = 1 << 20
    forest = Forest(ForestConfig(tenant_limit_bytes=limit, sources=(Source.SESSION,)))
    forest.start("live", EXTRACT, ids(1), session="kept")
    forest.observe("live", ids(30, 31, 32))
    for i in range(200):
        run_request(forest, "a", EXTRACT, text(i, 100), session=f"s{i}")
        assert forest.memory_bytes() < limit // 8 + 50_000
    assert 5 < forest.stats().num_sequences < 100
    for session, is_known in (("s199", True), ("s0", False)):
        forest.start("b", EXTRACT, ids(), session=session, learn=False)
        assert (len(forest.step([("b", text(int(session[1:]), 100)[:4])])[0]) > 0) == is_known
        forest.finish("b")
    forest.start("b", EXTRACT, ids(), session="kept")
    assert forest.step([("b", ids(30, 31))])[0].source == Source.SESSION
    forest.check_integrity()


def test_a_session_too_large_to_keep_goes_alone_and_at_once():
    forest = Forest(ForestConfig(tenant_limit_bytes=1 << 20, sources=(Source.SESSION,)))
    for i in range(5):
        run_request(forest, "a", EXTRACT, text(i, 50), session=f"s{i}")
    before = forest.memory_bytes()
    run_request(forest, "a", EXTRACT, text(9, 8000), session="large")
    assert forest.memory_bytes() <= before
    assert forest.stats().num_sequences == 5


def test_a_tenant_has_so_many_sessions_and_no_more():
    forest = Forest(ForestConfig(max_sessions=3, sources=(Source.SESSION,)))
    run_request(forest, "r", StageKey("rival", ("x",)), ids(1), session="s")
    for i in range(5):
        run_request(forest, "a", EXTRACT, ids(10, 11, 12), session=f"s{i}")
    assert forest.stats().num_sequences == 1 + 3
    forest.start("oldest", EXTRACT, ids(), session="s2")  # s3 is now idle longest
    run_request(forest, "a", EXTRACT, ids(10, 11, 12), session="new")
    for session, is_known in (("s2", True), ("s4", True), ("s3", False)):
        forest.start("b", EXTRACT, ids(), session=session, learn=False)
        assert len(forest.step([("b", ids(10, 11))])[0]) == is_known
        forest.finish("b")
    forest.check_integrity()


def test_where_all_sessions_are_busy_a_request_goes_without():
    forest = Forest(ForestConfig(max_sessions=2, sources=(Source.SESSION, Source.TENANT)))
    for i in range(3):
        forest.start(f"r{i}", EXTRACT, ids(), session=f"s{i}")
        forest.observe(f"r{i}", ids(10 * i, 11, 12))
    assert forest.stats().num_sequences == 3 + 2
    for i in range(3):
        forest.finish(f"r{i}")
    forest.start("b", EXTRACT, ids(), session="s2")
    assert forest.step([("b", ids(20, 11))])[0].source == Source.TENANT
    forest.check_integrity()


def test_what_a_tenant_has_that_cannot_be_evicted_is_not_taken_from_others():
    forest = Forest(ForestConfig(tenant_limit_bytes=256 << 10, total_limit_bytes=1 << 20))
    for seed in range(8):
        forest.learn(EXTRACT, text(seed, 200))
    held = forest.stats(EXTRACT)
    for i in range(1500):
        forest.start(f"r{i}", StageKey("rival", ("x",)), ids(), session=f"s{i}")
    assert forest.memory_bytes() > 1 << 20
    assert forest.stats(EXTRACT) == held
    forest.learn(EXTRACT, ids(1, 2, 3))
    assert forest.stats(EXTRACT).num_tokens == held.num_tokens + 3
    forest.check_integrity()


def test_stats_count_what_the_trees_hold():
    forest = Forest()
    run_request(forest, "a", EXTRACT, ids(1, 2, 3))
    forest.start("b", EXTRACT, ids(1))
    forest.observe("b", ids(4, 5))
    stats = forest.stats(EXTRACT)
    assert (stats.num_sequences, stats.num_tokens, stats.num_requests) == (2, 5, 1)
    assert stats.tree_bytes == forest.memory_bytes(EXTRACT) > 0
    assert forest.stats(OTHER).num_tokens == forest.stats(OTHER).tree_bytes == 0
    assert forest.stats().num_tokens == 3 * 5  # stage, workflow, tenant


# ---- threads ----


@pytest.mark.parametrize("kept", [(), (Source.STAGE,), (Source.SESSION, Source.TENANT)])
def test_only_the_sources_that_are_kept_draft_and_take_memory(kept):
    forest = Forest(ForestConfig(sources=kept))
    stage = StageKey("acme", ("pipeline", "plan"))
    forest.start("a", stage, ids(), session="s")
    forest.observe("a", ids(1, 2, 3))
    forest.finish("a")
    forest.start("b", stage, ids(), session="s")
    [draft] = forest.step([("b", ids(1, 2))])
    assert draft.source == (kept[0] if kept else Source.NONE)
    assert forest.stats().num_sequences == 2 * len(kept)
    forest.check_integrity()


def test_an_unknown_source_is_refused():
    with pytest.raises(ConfigError, match="REQUEST"):
        ForestConfig(sources=(Source.REQUEST,))


# ---- background and threads ----


def test_a_prompt_that_is_indexed_in_the_background_drafts_once_it_is_there():
    forest = Forest()
    prompt = text(1, 40_000)
    forest.start("a", EXTRACT, prompt, wait=False)
    forest.observe("a", prompt[:3])  # output may arrive before the index is ready
    forest.wait("a")
    draft = forest.draft("a")
    assert draft.source == Source.REQUEST
    assert draft.match_length == 3
    assert draft.token_ids.tolist() == prompt[3 : 3 + len(draft)].tolist()
    forest.check_integrity()
    forest.finish("a")
    assert forest.memory_bytes() < 40_000


def test_prompts_that_wait_to_be_indexed_count_in_the_budgets():
    forest = Forest(ForestConfig(total_limit_bytes=4 << 20))
    prompt = text(1, 100_000)
    forest.start("a", EXTRACT, prompt, wait=False)
    assert forest.memory_bytes() > prompt.nbytes
    names = [f"r{i}" for i in range(40)]
    for name in names:
        forest.start(name, EXTRACT, prompt, wait=False)
        assert forest.memory_bytes() <= 4 << 20
    for name in ["a", *names]:
        forest.wait(name)
        assert forest.memory_bytes() <= 4 << 20
        forest.finish(name)
    assert forest.memory_bytes() < 100_000
    forest.check_integrity()


def test_a_request_may_finish_while_its_prompt_is_being_indexed():
    forest = Forest()
    for turn in range(20):
        forest.start("a", EXTRACT, text(turn, 30_000), wait=False)
        forest.finish("a")
        forest.start("a", EXTRACT, text(turn, 100), wait=False)
        forest.wait("a")
        forest.finish("a")
    forest.check_integrity()
    assert forest.stats().num_requests == 0
    with pytest.raises(UnknownRequestError, match="'a'"):
        forest.wait("a")


def test_a_waiting_thread_returns_when_its_request_is_finished():
    forest = Forest()
    for request_id in ("a", "b"):
        forest.start(request_id, EXTRACT, text(1, 200_000), wait=False)

    def wait() -> None:
        with contextlib.suppress(UnknownRequestError):  # finish may be earlier
            forest.wait("b")

    waiting = threading.Thread(target=wait)
    waiting.start()
    forest.finish("b")
    waiting.join(timeout=60)
    assert not waiting.is_alive()
    forest.finish("a")


LONG = text(1, 300_000)
MANY = 100  # attempts, as the system may let one thread finish all its work before another


def turns_while_observed() -> int:
    """Return how often another call has a turn while a thread observes a long output."""
    forest = Forest()
    for request_id in ("long", "short"):
        forest.start(request_id, EXTRACT, ids(1))
    observer = threading.Thread(target=forest.observe, args=("long", LONG))
    observer.start()
    num_turns = 0
    while observer.is_alive():
        forest.step([("short", ids())])
        num_turns += 0 < forest.stats(EXTRACT).num_tokens < len(LONG)
    observer.join()
    assert forest.stats(EXTRACT).num_tokens == len(LONG)
    forest.check_integrity()
    return num_turns


def test_others_get_their_turns_while_a_long_output_is_observed():
    assert any(turns_while_observed() for _ in range(MANY))


def learned_until_finished(learn: bool) -> int:
    """Return the tokens learned of a request that finishes and restarts while its output is observed."""
    forest = Forest()
    forest.start("a", EXTRACT, ids(1), session="s")
    observer = threading.Thread(target=forest.observe, args=("a", LONG))
    observer.start()
    while observer.is_alive() and not forest.stats(EXTRACT).num_tokens:
        pass
    forest.finish("a", learn=learn)
    forest.start("a", EXTRACT, ids(1), session="s")
    observer.join()
    forest.check_integrity()
    stats = forest.stats(EXTRACT)
    assert stats.num_requests == 1
    return stats.num_tokens


def test_a_request_may_finish_while_its_output_is_observed():
    assert any(0 < learned_until_finished(learn=True) < len(LONG) for _ in range(MANY))


def test_what_is_not_to_be_learned_is_not_when_its_request_finishes_while_its_output_is_observed():
    assert learned_until_finished(learn=False) == 0


def test_a_long_output_is_taken_as_if_it_came_at_once():
    outputs = {"a": text(1, 700, 6), "b": text(2, 3, 6), "c": text(1, 1300, 6)[100:], "d": text(4, 256, 6)}
    stepped, observed = Forest(ForestConfig(depth=6)), Forest(ForestConfig(depth=6))
    for forest in (stepped, observed):
        for name in outputs:
            forest.start(name, EXTRACT, text(10, 20, 6), learn=name != "c")
    drafts = stepped.step(list(outputs.items()))
    for name, output in outputs.items():
        for begin in range(0, len(output), 7):
            observed.observe(name, output[begin : begin + 7])
    for name, draft in zip(outputs, drafts, strict=True):
        assert len(draft) > 0
        assert_same(draft, observed.draft(name))


def run_workload(forest: Forest) -> list[tuple[object, ...]]:
    """Run forty requests in lockstep, some of them equal, and return the drafts of each step."""
    drafts: list[tuple[object, ...]] = []
    for wave in range(3):
        names = [f"{wave}.{i}" for i in range(40)]
        outputs = {name: text(i % 7, 90, 12) for i, name in enumerate(names)}
        for i, name in enumerate(names):
            stage = (EXTRACT, COMBINE, OTHER)[i % 3]
            forest.start(name, stage, text(i, 200, 12), session=f"s{i % 5}", learn=i % 8 != 0)
        for begin in range(0, 90, 3):
            updates = [(name, outputs[name][begin : begin + 1 + begin % 3]) for name in names]
            for draft in forest.step(updates):
                drafts.append((draft.token_ids.tolist(), draft.probs.tolist(), draft.score, draft.source))
        for i, name in enumerate(names):
            forest.finish(name, learn=i % 6 != 0)
    forest.check_integrity()
    return drafts


def test_drafts_do_not_depend_on_the_number_of_threads():
    small = {"stage_limit_bytes": 64 << 10, "tenant_limit_bytes": 1 << 20}
    expected = run_workload(Forest(ForestConfig(**small)))
    assert any(drafted for drafted, *_ in expected)
    for threads in (2, 3, 8):
        assert run_workload(Forest(ForestConfig(**small, threads=threads))) == expected


class Settled(Forest):
    """A forest whose caller waits after each step until the trees have learned its tokens."""

    def step(self, *args: Any) -> list[Draft]:
        drafts = super().step(*args)
        self.settle()
        return drafts


def test_drafts_do_not_depend_on_when_tokens_are_learned_later():
    small = {"stage_limit_bytes": 64 << 10, "tenant_limit_bytes": 1 << 20}
    expected = run_workload(Settled(ForestConfig(**small), learns_later=True))
    assert any(drafted for drafted, *_ in expected)
    for _ in range(3):
        assert run_workload(Forest(ForestConfig(**small), learns_later=True)) == expected


def test_what_is_learned_later_is_what_is_learned_at_once():
    forests = Forest(), Forest(learns_later=True)
    for forest in forests:
        run_workload(forest)
    at_once, later = forests
    for stage in (EXTRACT, COMBINE, OTHER):
        assert later.stats(stage) == at_once.stats(stage)
        for forest in forests:
            forest.start("r", stage, text(3, 40, 12))
        drafts = [forest.step([("r", text(4, 5, 12))])[0] for forest in forests]
        assert len(drafts[0]) > 0
        assert_same(*drafts)
        for forest in forests:
            forest.finish("r")


@pytest.mark.parametrize(
    ("later", "num_tokens", "is_shared"),
    [
        (False, 2, True),
        (False, 16, True),
        (True, 2, False),
        (True, 3, True),
        (True, 15, True),
        (True, 16, False),
    ],
)
def test_requests_of_one_step_draft_from_each_other_where_drafts_save_steps(later, num_tokens, is_shared):
    """Two requests with two to eight tokens each on the mean; always if tokens are learned at once."""
    forest = Forest(learns_later=later)
    forest.start("writer", EXTRACT, ids(1))
    forest.start("reader", EXTRACT, ids(2))
    written = np.arange(10, 10 + num_tokens, dtype=np.int32)
    drafts = forest.step([("writer", written), ("reader", ids(10))])
    num_known = min(num_tokens - 1, 4)  # four draft tokens behind a match of one, by the paper's rule
    assert len(drafts[1]) == (num_known if is_shared else 0)
    assert len(forest.draft("reader")) == num_known


def test_impossible_thread_counts_are_refused():
    for threads in (0, 65):
        with pytest.raises(ConfigError, match=str(threads)):
            ForestConfig(threads=threads)
    for threads in (0, 65, 1 << 40):
        with pytest.raises(ConfigError, match=str(threads)):
            ForestCore(8, 1 << 20, threads)


# ---- learned drafts ----

LEARNED = DraftConfig(rule="learned", min_prob=0.001)
LEARNED_TREE = replace(LEARNED, mode="tree")


def test_the_price_of_a_draft_token_can_rise():
    forest = Forest()
    forest.start("a", EXTRACT, ids(1, 2, 3, 4, 5, 6, 7, 8, 1, 2), draft=LEARNED)
    cheap = forest.draft("a")
    dear = forest.draft("a", min_prob=0.999 * float(cheap.probs[2]))
    assert dear.token_ids.tolist() == cheap.token_ids.tolist()[:3]
    assert len(forest.draft("a", min_prob=1.0)) == 0
    forest.start("b", EXTRACT, ids(1, 2, 3, 1, 2, 4, 1, 2))  # min_prob applies to the paper's rule too
    assert len(forest.draft("b")) > 0
    assert len(forest.draft("b", min_prob=0.9)) == 0


@pytest.mark.parametrize("min_prob", [-0.1, 1.5, float("nan"), "0.1"])
def test_an_impossible_price_is_refused(min_prob):
    forest = Forest()
    forest.start("a", EXTRACT, ids(1))
    with pytest.raises(ConfigError, match=re.escape(repr(min_prob))):
        forest.step([("a", ids(2))], min_prob=min_prob)


def teach(forest: Forest, stage: StageKey, name: str, *, is_right: bool) -> float:
    """Run a request with the prompt 1 2 3 and return the final probability of 3 after 1 2."""
    forest.start(name, stage, ids(1, 2, 3), draft=LEARNED)
    prob = 0.0
    for i in range(200):
        (draft,) = forest.step([(name, ids(1, 2))])
        prob = float(draft.probs[0]) if 3 in draft.token_ids[:1] else 0.0
        forest.observe(name, ids(3 if is_right else 50 + i))
    forest.finish(name, learn=False)
    return prob


def test_what_a_stage_has_learned_helps_this_stage_only():
    forest = Forest()
    assert teach(forest, EXTRACT, "a", is_right=False) < 0.2
    stages = {"same": EXTRACT, "new": COMBINE, "other tenant": StageKey("other", EXTRACT.path)}
    for name, stage in stages.items():
        forest.start(name, stage, ids(1, 2, 3, 1, 2), draft=LEARNED)
    scores = {name: forest.draft(name).score for name in stages}
    assert scores["same"] < scores["new"] == scores["other tenant"]
    assert teach(forest, COMBINE, "b", is_right=True) > 0.8
    scores = {name: forest.draft(name).score for name in stages}
    assert scores["same"] < scores["other tenant"] < scores["new"]
    untaught = Forest()
    untaught.start("a", EXTRACT, ids(1, 2, 3, 1, 2), draft=LEARNED)
    assert untaught.draft("a").score == scores["other tenant"]


def test_models_count_in_the_budget():
    with_room = ForestConfig(tenant_limit_bytes=16 * 3 * MODEL_BYTES, total_limit_bytes=1 << 30)
    forest = Forest(with_room)
    for i in range(10):
        forest.start(f"r{i}", StageKey("t", (f"s{i}",)), ids(1, 2, 3, 1, 2), draft=LEARNED)
        assert len(forest.draft(f"r{i}")) > 0
        held = min(i + 1, 3) * MODEL_BYTES
        assert held <= forest.memory_bytes() < held + (i + 1) * 100_000
    forest.check_integrity()
    single = Forest(ForestConfig(tenant_limit_bytes=4 * MODEL_BYTES))  # it may take more than its part
    for i in range(3):
        single.start(f"r{i}", StageKey("t", (f"s{i}",)), ids(1, 2, 3, 1, 2), draft=LEARNED)
        assert MODEL_BYTES <= single.memory_bytes() <= 4 * MODEL_BYTES
    without_room = Forest(ForestConfig(tenant_limit_bytes=4 * MODEL_BYTES - 1))
    without_room.start("a", EXTRACT, ids(1, 2, 3, 1, 2), draft=LEARNED)
    assert without_room.draft("a").token_ids.tolist() == [3, 1, 2]  # by the paper's rule
    assert without_room.memory_bytes() < MODEL_BYTES


@pytest.mark.parametrize("mode", ["chain", "tree"])
def test_learned_drafts_do_not_depend_on_the_number_of_threads(mode):
    rng = np.random.default_rng(0)
    phrases = [rng.integers(0, 50, 12).astype(np.int32) for _ in range(8)]
    forests = [Forest(ForestConfig(threads=threads)) for threads in (1, 3)]
    names = [f"r{i}" for i in range(40)]
    for forest in forests:
        for i, name in enumerate(names):
            stage = StageKey("t", ("w", f"s{i % 3}"))
            forest.start(name, stage, phrases[i % 8], draft=DraftConfig(mode, rule="learned", min_prob=0.02))
    for step in range(30):
        updates = [(name, phrases[(i + step // 3) % 8][step % 3 * 4 :][:4]) for i, name in enumerate(names)]
        for one, other in zip(*(forest.step(updates) for forest in forests), strict=True):
            assert_same(one, other)
