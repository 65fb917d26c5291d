"""The union of the trees' draft and the model's."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from agentspec.draft import Draft, Origin, Source
from lab.drafters.draft_union import TEXT, DraftUnion
from lab.drafters.joint_chance import JointChance
from lab.tests.drafters.support import Greatest, chain


def claim(union: DraftUnion, *steps: tuple[int, float]) -> None:
    """Let the model draft a chain: tokens, and the chance of each behind the one before."""
    path: list[int] = []
    for token, chance in steps:
        union.claim(path[-1] if path else TEXT, token, chance)
        path = union.accepted([step[0] for step in steps[: len(path) + 1]])


def union_of(*drafts: Draft, model: Sequence[tuple[int, float]] = ()) -> DraftUnion:
    union = DraftUnion()
    for draft in drafts:
        union.add(draft)
    claim(union, *model)
    union.rate(Greatest())
    return union


def test_a_union_has_each_node_once() -> None:
    union = DraftUnion()
    assert union.add(chain((1, 2, 3), (0.9, 0.45, 0.18))) == [0, 1, 2]
    claim(union, (1, 0.8), (4, 0.5))
    union.rate(Greatest())
    assert len(union) == 4
    assert union.likeliest_path() == [0, 1, 2]
    draft = union.draft(8, 0.0, is_tree=True)
    assert draft.token_ids.tolist() == [1, 2, 4, 3]
    assert draft.parents.tolist() == [-1, 0, 0, 1]
    assert draft.probs.tolist() == pytest.approx([0.9, 0.45, 0.45, 0.18])
    assert draft.score == pytest.approx(union.score())
    assert draft.source is Source.MODEL  # only the model has 4
    assert union.draft(1, 0.0, is_tree=True).source is Source.STAGE
    assert union.draft(8, 0.4, is_tree=True).token_ids.tolist() == [1, 2, 4]
    assert union.draft(2, 0.0, is_tree=True).token_ids.tolist() == [1, 2]
    assert union.draft(8, 0.0, is_tree=False).token_ids.tolist() == [1, 2, 3]


def test_estimates_behind_a_node_add_up_to_its_own_at_most() -> None:
    union = union_of(chain((1, 2), (0.5, 0.45)), model=((1, 0.6), (3, 0.9)))
    first, *others = union.draft(8, 0.0, is_tree=True).probs.tolist()
    assert first == pytest.approx(0.6)
    assert others == pytest.approx([0.3, 0.3])  # 0.9 and 0.9 of it, scaled


def test_new_estimates_change_what_is_behind_them() -> None:
    union = union_of(chain((1, 2, 3), (0.8, 0.4, 0.2)))
    union.add(chain((4, 5), (0.9, 0.9)), below=2)  # not estimated yet
    union.claim(0, 2, 0.9)
    union.rate_behind(0, Greatest())
    probs = [union.prob(node) for node in range(5)]
    assert probs == pytest.approx([0.8, 0.8 * 0.9, 0.4 * 0.9, 0, 0])
    union.rate_behind(2, Greatest())
    assert [union.prob(node) for node in (3, 4)] == pytest.approx([0.36 * 0.9, 0.36 * 0.9])
    before = [union.prob(node) for node in range(5)]
    union.rate(Greatest())
    assert [union.prob(node) for node in range(5)] == pytest.approx(before)


def test_no_estimate_is_above_the_parents() -> None:
    union = DraftUnion()
    union.add(chain((1, 2), (0.3, 0.7)))
    assert union.add(chain((3,), (0.9,)), below=1) == [2]
    union.rate(Greatest())
    probs = union.draft(8, 0.0, is_tree=True).probs.tolist()
    assert probs == pytest.approx([0.3, 0.3, 0.27])
    assert union.accepted([1, 2, 9]) == [0, 1]
    assert union.accepted([9]) == []


@pytest.mark.parametrize("probs", [(0.0, 0.0), (1.0, 1.0), (1.0, 0.0)])
def test_certain_estimates_are_taken(probs: tuple[float, float]) -> None:
    union = DraftUnion()
    union.add(chain((1, 2), probs))
    union.rate(JointChance())
    assert all(0 <= prob <= 1 for prob in union.draft(8, 0.0, is_tree=True).probs.tolist())


def test_outcomes_are_those_of_nodes_behind_accepted_ones() -> None:
    union = union_of(chain((1, 2, 3), (0.9, 0.45, 0.18)), model=((1, 0.8), (4, 0.5)))
    found = [(said.trees, said.model, is_accepted) for said, is_accepted in union.outcomes([1, 4, 9])]
    assert found == [
        (pytest.approx(0.9), pytest.approx(0.8), True),
        (pytest.approx(0.5), 0.0, False),
        (0.0, pytest.approx(0.5), True),
    ]
    rests = [(said.trees_rest, said.model_rest) for said, _ in union.outcomes([1, 4, 9])]
    assert rests[0] == (pytest.approx(0.1), pytest.approx(0.2))
    assert rests[1] == rests[2] == (pytest.approx(0.5), pytest.approx(0.5))
    assert len([*union.outcomes([1])]) == 1  # what follows is not known
    assert [is_accepted for _, is_accepted in union.outcomes([8])] == [False]


def test_a_union_keeps_origins() -> None:
    union, first = DraftUnion(), chain((1, 2), (0.9, 0.8))
    first.origins = np.array([Origin.FLEET, Origin.SNAPSHOT], np.uint8)
    first.match_length = 7
    union.add(first)
    claim(union, (1, 0.9), (3, 0.1))
    union.rate(Greatest())
    draft = union.draft(8, 0.0, is_tree=True)
    assert draft.origins is not None
    assert draft.origins.tolist() == [Origin.FLEET, Origin.SNAPSHOT, Origin.LOCAL]
    assert draft.match_length == 7


def test_an_empty_union_drafts_nothing() -> None:
    union = union_of()
    assert union.likeliest_path() == []
    assert union.draft(8, 0.0, is_tree=True).source is Source.NONE
