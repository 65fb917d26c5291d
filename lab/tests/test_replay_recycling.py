"""Token Recycling, compared with hand-worked examples."""

from __future__ import annotations

import numpy as np

from agentspec import Draft, Source
from agentspec.replay.calls import END, Call
from agentspec.replay.replay import replay
from lab.replay.recycling import TokenRecycling

NONE: tuple[int, ...] = ()


def ids(*tokens: int) -> np.ndarray:
    return np.array(tokens, np.int32)


def call(prompt: tuple[int, ...], response: tuple[int, ...] = NONE) -> Call:
    return Call("s", "a", ids(*prompt), ids(*response, END))


def test_a_tree_is_filled_with_what_followed_each_token_last():
    drafter = TokenRecycling(8, is_tree=True)
    drafter.start("x", call((1, 2, 1, 3, 1, 2, 4)))
    # candidates, latest first: 1: 2 3; 2: 4 1; 3: 1; 4: 1 (since the step)
    draft = drafter.step("x", ids(1))
    # the shape above from 1: a = 2, b = 3, aa = 4, no c, no d, ab = 1, ba = 1, aaa = 1
    assert draft.token_ids.tolist() == [2, 3, 4, 1, 1, 1]
    assert draft.parents.tolist() == [-1, -1, 0, 0, 1, 2]
    assert np.isnan(draft.probs).all()
    assert (draft.match_length, draft.source) == (1, Source.TENANT)


def test_what_is_below_a_missing_node_is_missing_too():
    drafter = TokenRecycling(8, is_tree=True)
    drafter.start("x", call((1, 2)))
    drafter.start("y", call((3, 1)))
    # candidates: 1: 2; 3: 1; 2 has none: from 1 there is a = 2 with no child
    assert drafter.step("y", ids()).token_ids.tolist() == [2]
    draft = drafter.step("y", ids(3))  # now 1: 3 2, so aa = 3, ab = 2, aaa = 1
    assert draft.token_ids.tolist() == [1, 3, 2, 1]
    assert draft.parents.tolist() == [-1, 0, 0, 1]


def test_a_chain_is_of_first_candidates():
    drafter = TokenRecycling(5, is_tree=False)
    drafter.start("x", call((1, 2, 1, 3, 1, 2, 4)))
    draft = drafter.step("x", ids(1))  # 1 -> 2 -> 4 -> 1 -> ...
    assert draft.token_ids.tolist() == [2, 4, 1, 2, 4]
    assert draft.is_chain


def below_the_root(draft: Draft) -> list[int]:
    return draft.token_ids[draft.parents == -1].tolist()


def test_a_token_has_the_last_eight_candidates():
    drafter = TokenRecycling(32, is_tree=True)
    drafter.start("x", call(tuple(token for i in range(10) for token in (1, 20 + i))))
    assert below_the_root(drafter.step("x", ids(1))) == [29, 28, 27, 26, 25, 24, 23, 22]
    # 24 again: it moves to the front, and no candidate is dropped
    assert below_the_root(drafter.step("x", ids(24, 1))) == [24, 29, 28, 27, 26, 25, 23, 22]


def test_calls_share_candidates_but_do_not_follow_one_another():
    drafter = TokenRecycling(4, is_tree=False)
    drafter.start("x", call((1, 2)))
    drafter.start("y", call((7,)))
    drafter.step("x", ids(3))
    drafter.finish("x", ids(4))
    assert drafter.step("y", ids(1)).token_ids.tolist() == [2, 3, 4]  # nothing followed 4; 7 did not follow 2
    drafter.start("z", call(NONE))
    assert drafter.step("z", ids()).token_ids.tolist() == []  # no token to start from


def test_a_tree_accepts_what_a_chain_misses():
    # 1 2 is last in the prompt, 1 3 is in the response: the second candidate
    calls = [call((1, 3, 5, 1, 2, 5), (1, 3))]
    chain, tree = (replay(calls, TokenRecycling(8, is_tree=is_tree))["s"] for is_tree in (False, True))
    # chain: 5 -> 1 is right, 1 -> 2 wrong, so the model adds 3; then 3 -> 5, but the response ends
    assert (chain.steps, chain.accepted) == (2, 1)
    # tree: 5 -> 1 -> 3 is right, and the model adds the end
    assert (tree.steps, tree.accepted) == (1, 2)
    assert tree.calibration_error is None
