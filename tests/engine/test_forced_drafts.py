"""Tokens that a grammar forces begin a draft. Outputs stay those of the model, in fewer steps."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from agentspec.draft import Draft, Origin, Source
from agentspec.engine.forced_drafts import with_forced
from agentspec.engine.model.transformer import Transformer
from agentspec.engine.text.tokenizer import Tokenizer
from agentspec.forest import Forest
from agentspec.generation import GenerationRequest, SamplingParams
from agentspec.proposer import NoDrafts, Proposer, Tokens
from agentspec.tags import Tags
from tests.support.fakes import STAGE, RandomProposer, SteppedEngine

SCHEMA = {
    "type": "object",
    "properties": {
        "database_name": {"const": "concert_singer"},
        "kind_of_statement": {"enum": ["select_statement", "update_statement"]},
        "has_subquery": {"type": "boolean"},
    },
    "required": ["database_name", "kind_of_statement", "has_subquery"],
    "additionalProperties": False,
}


def ids(*tokens: int) -> Tokens:
    return np.array(tokens, np.int32)


def draft(tokens: Sequence[int], parents: Sequence[int] | None = None, **more: Any) -> Draft:
    above = range(-1, len(tokens) - 1) if parents is None else parents
    probs = np.full(len(tokens), 0.5, np.float32)
    return Draft(ids(*tokens), ids(*above), probs, float(probs.sum()), source=Source.STAGE, **more)


def shown(one: Draft) -> tuple[list[int], list[int], list[float]]:
    return one.token_ids.tolist(), one.parents.tolist(), one.probs.tolist()


def test_a_draft_with_all_forced_tokens_stays() -> None:
    drafts = [draft([1, 2, 3]), draft([9, 1, 2], [-1, -1, 1]), draft([5])]
    forced = [ids(1, 2), ids(1, 2), ids()]
    assert with_forced("abc", drafts, forced, lambda _: pytest.fail("nothing is to be drafted")) == drafts


@pytest.mark.parametrize("made", [draft([]), draft([1]), draft([1, 9, 2]), draft([1, 1, 2], [-1, -1, 0])])
def test_another_one_is_replaced(made: Draft) -> None:
    tail = draft([7, 8, 6], [-1, 0, -1], match_length=4, origins=np.array([1, 0, 2], np.uint8))
    asked: list[Any] = []

    def behind(assumed: list[tuple[str, Tokens]]) -> list[Draft]:
        asked.extend((key, tokens.tolist()) for key, tokens in assumed)
        return [tail]

    forced = ids(1, 2) if len(made) < 3 or made.parents.tolist() != [-1, -1, 0] else ids(1, 3)
    kept, found = with_forced("ab", [draft([5]), made], [ids(), forced], behind)
    assert kept.token_ids.tolist() == [5]
    assert asked == [("b", forced.tolist())]
    assert shown(found) == ([*forced.tolist(), 7, 8, 6], [-1, 0, 1, 2, 1], [1.0, 1.0, 0.5, 0.5, 0.5])
    assert (found.score, found.match_length, found.source) == (3.5, 4, Source.REQUEST)
    assert found.origins is not None
    assert found.origins.tolist() == [0, 0, Origin.FLEET, 0, Origin.SNAPSHOT]


def run(
    model: Transformer, tokenizer: Tokenizer, proposer: Proposer, temperature: float, **tags: Any
) -> tuple[list[int], str, int]:
    """Return an output under the schema, its text, and the number of its decode steps."""
    engine = SteppedEngine(model, tokenizer, proposer)
    sampling = SamplingParams(temperature=temperature, seed=3, json_schema=SCHEMA, max_tokens=120)
    engine.submit(GenerationRequest("r", [5, 6, 7], sampling, Tags(STAGE, **tags)))
    engine.run()
    deltas = engine.deltas("r")
    stats = deltas[-1].speculation
    assert stats is not None
    assert deltas[-1].finish_reason == "stop"
    return engine.output("r"), "".join(delta.text for delta in deltas), stats.num_steps


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_what_a_schema_dictates_is_drafted_at_the_first_request(
    exact_model: Transformer, tokenizer: Tokenizer, temperature: float
) -> None:
    plain, text, num_plain_steps = run(exact_model, tokenizer, NoDrafts(), temperature)
    assert json.loads(text)["database_name"] == "concert_singer"
    assert num_plain_steps == len(plain) - 1
    drafted, _, num_steps = run(exact_model, tokenizer, Forest(), temperature)
    assert drafted == plain
    _, _, num_off_steps = run(exact_model, tokenizer, Forest(), temperature, max_draft=0)
    assert num_off_steps == num_plain_steps
    assert num_steps < 0.7 * num_plain_steps


def test_a_proposer_that_can_not_draft_behind_tokens_gets_the_forced_ones_alone(
    exact_model: Transformer, tokenizer: Tokenizer
) -> None:
    plain, _, num_plain_steps = run(exact_model, tokenizer, NoDrafts(), 0.0)
    output, _, num_steps = run(exact_model, tokenizer, RandomProposer(is_tree=True), 0.0)
    assert output == plain
    assert num_steps < 0.9 * num_plain_steps
