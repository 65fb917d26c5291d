"""Where a draft token was learned: from this engine's outputs, from another's, or from a snapshot."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentspec import DraftConfig
from agentspec.draft import Draft, Origin
from agentspec.forest import Forest
from agentspec.stages import StageKey

STAGE = StageKey.parse("flow/plan")
RULES = (
    DraftConfig(rule="paper", max_tokens=8, min_prob=0.0, doubt=0.0),
    DraftConfig(rule="learned", max_tokens=8, min_prob=0.0),
)
LOCAL, FLEET, SNAPSHOT = Origin

Outputs = Sequence[tuple[Sequence[int], Origin]]


def tokens(ids: Sequence[int]) -> np.ndarray:
    return np.array(ids, np.int32)


def learned(outputs: Outputs) -> Forest:
    forest = Forest()
    for ids, origin in outputs:
        forest.learn(STAGE, tokens(ids), origin=origin)
    return forest


def drafted(forest: Forest, text: Sequence[int], config: DraftConfig) -> Draft:
    forest.start("r", STAGE, tokens([]), draft=config, learn=False)
    (draft,) = forest.step([("r", tokens(text))], max_tokens=8)
    forest.finish("r", learn=False)
    return draft


def origins(draft: Draft) -> list[Origin]:
    return [LOCAL] * len(draft) if draft.origins is None else [Origin(one) for one in draft.origins]


@pytest.mark.parametrize("config", RULES, ids=lambda one: one.rule)
def test_a_token_comes_from_where_its_string_was_written(config: DraftConfig) -> None:
    forest = learned([([1, 2, 3, 4, 5, 6], FLEET), ([2, 3, 4], LOCAL), ([21, 22, 23, 24], SNAPSHOT)])
    draft = drafted(forest, [2, 3], config)
    assert draft.token_ids.tolist() == [4, 5, 6]
    assert origins(draft) == [LOCAL, FLEET, FLEET]
    assert origins(drafted(forest, [21, 22], config)) == [SNAPSHOT, SNAPSHOT]


@pytest.mark.parametrize("config", RULES, ids=lambda one: one.rule)
def test_a_string_that_is_written_here_too_is_local_from_then_on(config: DraftConfig) -> None:
    forest = learned([([1, 2, 3, 4], SNAPSHOT), ([1, 2, 3, 4], FLEET)])
    assert origins(drafted(forest, [1, 2], config)) == [FLEET, FLEET]
    forest.start("writer", STAGE, tokens([]))
    forest.observe("writer", tokens([1, 2, 3, 4]))
    forest.finish("writer")
    draft = drafted(forest, [1, 2], config)
    assert len(draft) == 2
    assert draft.origins is None


def test_an_unknown_origin_is_refused() -> None:
    with pytest.raises(ValueError, match="there is no origin 3"):
        Forest().learn(STAGE, tokens([1]), origin=3)


@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, 3), min_size=1, max_size=12), st.sampled_from(Origin)), max_size=8
    ),
    st.lists(st.integers(0, 3), min_size=1, max_size=6),
)
def test_the_origin_is_the_closest_of_all_outputs_with_the_string(outputs: Outputs, text: list[int]) -> None:
    draft = drafted(learned(outputs), text, RULES[0])
    if draft.source.name == "REQUEST":  # its own text continues it
        return
    context = text[len(text) - draft.match_length :]
    for i, origin in enumerate(origins(draft)):
        string = [*context, *draft.token_ids[: i + 1].tolist()]
        assert origin == min(where for ids, where in outputs if contains(ids, string))


def contains(ids: Sequence[int], string: Sequence[int]) -> bool:
    return any(list(ids[i : i + len(string)]) == string for i in range(len(ids)))
