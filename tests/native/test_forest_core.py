"""The binding of ForestCore: input that is refused, and calls that agentspec.Forest does not show.

Drafts are compared with brute force in C++ (``cpp/naive_forest.cpp``, ``test_million_steps``).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from agentspec._native import DraftMaker, DraftOptions, ForestCore
from agentspec.draft import TREES, Draft
from agentspec.errors import ConfigError, DuplicateRequestError, TokenError, UnknownRequestError

NO_TOKENS = np.empty(0, np.int32)
MAKER = DraftMaker(Draft, TREES)
OPTIONS = DraftOptions(False, 8, 4.0, 1, 0.1)


@dataclass(slots=True)
class Named:
    number: int


def ids(*tokens: int) -> np.ndarray:
    return np.array(tokens, np.int32)


def step(core: ForestCore, updates: list[object], max_tokens: int = 8) -> list[Draft] | None:
    return core.step({str(i): Named(i) for i in range(9)}, updates, max_tokens, 0.0, MAKER)


def drafted(core: ForestCore, request: int, *tokens: int, max_tokens: int = 8) -> list[int]:
    drafts = step(core, [(str(request), ids(*tokens))], max_tokens)
    assert drafts is not None
    return drafts[0].token_ids.tolist()


@pytest.fixture
def core() -> ForestCore:
    """Return a core with a group and the live requests 0 and 1."""
    core = ForestCore(8, 1 << 20)
    core.create_group(1 << 20)
    for request in (0, 1):
        core.start(request, 0, ids(1, 2, 1), NO_TOKENS, [], OPTIONS)
    return core


@pytest.mark.parametrize(
    "updates",
    [
        [("0", ids(1)), ("7", ids())],  # number 7 is not live
        [("0", ids(1)), ("0", ids())],
        [("0", ids(1)), ("ghost", ids())],
        [("0", ids(1)), ("1", ids(), 3)],
        [("0", ids(1)), ["1", ids()]],
        [("0", ids(1)), ("1", np.array([1]))],
        [("0", ids(1)), ("1", np.array([[1]], np.int32))],
        [("0", ids(1)), ("1", np.arange(4, dtype=np.int32)[::2])],
    ],
)
def test_a_batch_of_another_form_makes_nothing_and_changes_nothing(core, updates):
    before = core.memory_bytes()
    assert step(core, updates) is None
    assert core.memory_bytes() == before
    assert drafted(core, 0) == [2, 1]


@pytest.mark.parametrize(
    ("call", "error", "named"),
    [
        (lambda core: step(core, [("0", ids(5)), ("1", ids(-4))]), TokenError, "-4"),
        (lambda core: core.observe(0, ids(-4)), TokenError, "-4"),
        (lambda core: core.observe(0, np.array([1])), TypeError, "observe"),
        (lambda core: core.observe(4, ids(1)), UnknownRequestError, "request 4"),
        (lambda core: core.start(1, 0, ids(), NO_TOKENS, [], OPTIONS), DuplicateRequestError, "request 1"),
        (lambda core: core.start(2, 0, ids(-1), NO_TOKENS, [], OPTIONS), TokenError, "-1"),
        (lambda core: core.start(2, 0, ids(), NO_TOKENS, [(0, 6)], OPTIONS), ConfigError, "not 6"),
        (lambda core: core.start(2, 7, ids(), NO_TOKENS, [], OPTIONS), UnknownRequestError, "group 7"),
        (lambda core: core.finish(4, True), UnknownRequestError, "request 4"),
        (lambda core: core.drop_index(7), UnknownRequestError, "index 7"),
        (lambda core: core.create_index(7, 4096), UnknownRequestError, "group 7"),
        (lambda core: core.read_outputs(99, True), UnknownRequestError, "index 99"),
    ],
)
def test_a_wrong_call_is_named_and_changes_nothing(core, call, error, named):
    before = core.memory_bytes()
    with pytest.raises(error, match=named):
        call(core)
    assert core.memory_bytes() == before
    assert drafted(core, 0) == [2, 1]


def test_a_step_without_tokens_to_draft_drafts_nothing(core):
    assert drafted(core, 0) == [2, 1]
    assert drafted(core, 0, max_tokens=0) == []
    assert drafted(core, 0, 2)[:2] == [1, 2]


def test_outputs_are_read_with_their_uses_and_learned_with_them():
    core = ForestCore(5, 1 << 30)
    group = core.create_group(1 << 30)
    indices = np.array([core.create_index(group, 1 << 30), core.create_index(group, 1 << 30)], np.uint64)
    core.learn(indices[:1], ids(1, 2, 3), 4)
    core.learn(indices[:1], ids(7))
    tokens, sizes, uses = core.read_outputs(indices[0], True)
    assert (tokens.tolist(), sizes.tolist(), uses.tolist()) == ([1, 2, 3, 7], [3, 1], [4, 1])
    assert (tokens.dtype, sizes.dtype, uses.dtype) == (np.int32, np.uint32, np.uint32)
    assert len(core.read_outputs(indices[0], False)[0]) == 0
    assert core.index_size(indices[0]) == (5, 13)
    for wrong in (0, 65_536):
        with pytest.raises(ConfigError, match=f"not {wrong}"):
            core.learn(indices, ids(1), wrong)


def test_a_request_without_its_model_drafts_by_the_papers_rule():
    core = ForestCore(8, 1 << 30)
    group = core.create_group(1 << 30)
    index = core.create_index(group, 1 << 30)
    core.learn(np.array([index], np.uint64), ids(7, 1, 2, 3, 4, 5, 6))
    gone = core.create_model(group)
    core.drop_model(gone)
    for request, model in ((0, None), (1, gone)):
        core.start(request, group, ids(9, 1, 2, 3), NO_TOKENS, [(index, 3)], OPTIONS, model=model)
        assert drafted(core, request, max_tokens=4) == [4, 5, 6]
