"""A union that a model and the trees grow together."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
import pytest

from agentspec.draft import Draft
from agentspec.proposer import Tokens
from lab.drafters.draft_union import DraftUnion
from lab.drafters.growing_union import NUM_CANDIDATES, GrowingUnion
from lab.drafters.joint_chance import JointChance, Opinions
from lab.tests.drafters.support import Greatest, chain

Path = tuple[int, ...]
Model = Mapping[Path, Mapping[int, float]]  # what follows a path, and its chance

NOTHING = Draft()
VOCAB_SIZE = 1000


def no_more(_: Tokens, least: float) -> Draft:
    return NOTHING


def grown(
    draft: Draft,
    model: Model,
    continued: Callable[[Tokens, float], Draft] = no_more,
    *,
    width: int = 2,
    most: int = 16,
    least: float = 0.01,
    depth: int = 8,
    chance: JointChance | None = None,
) -> tuple[DraftUnion, list[list[Path]]]:
    """Return the union of a draft and a model, and the paths whose ends the model expanded, by level."""
    union, chance = DraftUnion(), chance or Greatest()
    union.add(draft)
    union.rate(chance)
    tree = GrowingUnion(
        union,
        chance,
        continued,
        vocab_size=VOCAB_SIZE,
        width=width,
        most_tokens=most,
        least_chance=least,
    )
    paths: list[Path] = [()]
    computed: list[Path] = []
    levels = []
    for _ in range(depth):
        following = [sorted(model.get(path, {}).items(), key=lambda one: -one[1]) for path in paths]
        padded = [row + [(999, 0.0)] * (NUM_CANDIDATES - len(row)) for row in following]
        chances = np.array([[chance for _, chance in row] for row in padded], np.float32)
        tokens = np.array([[token for token, _ in row] for row in padded], np.int32)
        with np.errstate(divide="ignore"):
            tree.add(tokens, np.log(chances))
        level = tree.expand()
        if level is None:
            break
        paths = [
            (*paths[row], token) for row, token in zip(level.rows, level.token_ids.tolist(), strict=True)
        ]
        computed += paths
        for path, parent in zip(computed, level.parents.tolist(), strict=True):
            assert path[:-1] == (computed[parent] if parent >= 0 else ())
        levels.append(paths)
    union.rate(chance)
    return union, levels


def probs(union: DraftUnion) -> dict[Path, float]:
    draft = union.draft(99, 0.0, is_tree=True)
    paths: list[Path] = []
    for token, parent in zip(draft.token_ids.tolist(), draft.parents.tolist(), strict=True):
        assert parent < len(paths)
        paths.append((*(paths[parent] if parent >= 0 else ()), token))
    return dict(zip(paths, draft.probs.tolist(), strict=True))


def test_the_model_continues_the_path_of_the_trees() -> None:
    """It would have drafted other tokens."""
    model = {(): {5: 0.3, 1: 0.2}, (1,): {6: 0.3, 2: 0.1}, (1, 2): {3: 0.9}, (1, 2, 3): {4: 0.8}}
    union, levels = grown(chain((1, 2), (0.6, 0.54)), model, width=1)
    assert levels == [[(1,)], [(1, 2)], [(1, 2, 3)], [(1, 2, 3, 4)]]
    found = probs(union)
    assert found[1, 2, 3, 4] == pytest.approx(0.6 * (0.9 / 1.2) * 0.9 * 0.8)  # 6 and 2 behind 1 add up to 1.2
    assert found[5,] == pytest.approx(0.3)
    assert found[1, 6] == pytest.approx(0.6 * 0.3 / 1.2)


def test_the_model_estimates_tokens_of_the_trees_that_it_would_not_draft() -> None:
    model = {(): {5: 0.5, 6: 0.3, 1: 0.002}}
    union, _ = grown(chain((1, 2), (0.9, 0.8)), model, width=1)
    said = [one for one, _ in union.outcomes([1, 2])]
    assert [one.model for one in said] == [pytest.approx(0.002), 0.0, pytest.approx(0.5)]
    assert (6,) not in probs(union)


def test_the_trees_continue_the_likeliest_new_tokens_of_the_model() -> None:
    asked: list[list[int]] = []

    def continued(assumed: Tokens, least: float) -> Draft:
        asked.append(assumed.tolist())
        assert least == pytest.approx(0.01 / (0.5 if assumed[-1] == 5 else 0.1))
        return chain((8, 9), (0.9, 0.8)) if assumed[-1] == 5 else NOTHING

    model = {(): {5: 0.5, 1: 0.2, 6: 0.15, 7: 0.1}}
    union, levels = grown(chain((1, 2), (0.2, 0.1)), model, continued, width=4, depth=2)
    assert asked == [[5], [1, 2]]  # two of a level at most, but not 1, which they have continued
    assert levels[1][0] == (5, 8)
    assert probs(union)[5, 8, 9] == pytest.approx(0.5 * 0.9 * 0.8 / 0.9)


def test_the_model_corrects_what_follows_a_token_of_the_trees() -> None:
    """It doubts the first token, so the others leave room for its own."""

    class ModelFirst(JointChance):
        def __call__(self, said: Opinions) -> float:
            return said.model or said.trees

    model = {(): {5: 0.6, 1: 0.01}, (5,): {6: 0.9}, (5, 6): {7: 0.9}}
    union, levels = grown(
        chain((1, 2, 3, 4), (0.9, 0.9, 0.9, 0.9)), model, width=2, most=4, least=0.001, chance=ModelFirst()
    )
    assert (5, 6) in levels[1]
    assert probs(union)[1, 2, 3, 4] == pytest.approx(0.01)
    assert union.draft(3, 0.0, is_tree=True).token_ids.tolist() == [5, 6, 7]


def test_estimates_that_are_no_numbers_change_nothing() -> None:
    model = {(): {1: math.nan, 5: math.nan}}
    union, _ = grown(chain((1,), (0.6,)), model)
    assert probs(union) == {(1,): pytest.approx(0.6)}
    assert [said.model for said, _ in union.outcomes([1])] == [0.0]
