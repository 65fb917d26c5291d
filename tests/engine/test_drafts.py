"""Tokens that a grammar forces begin a draft. Outputs stay those of the model, in fewer steps."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from agentspec.draft import Draft, Source
from agentspec.engine.drafts import begun_by
from agentspec.engine.model.transformer import Transformer
from agentspec.engine.sampling.grammar import GrammarCompiler
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


@pytest.mark.parametrize("origins", [None, np.array([1, 0, 2], np.uint8)])
def test_what_follows_is_below_the_forced_tokens(origins: Any) -> None:
    found = begun_by(ids(1, 2), draft([7, 8, 6], [-1, 0, -1], match_length=4, origins=origins))
    assert shown(found) == ([1, 2, 7, 8, 6], [-1, 0, 1, 2, 1], [1.0, 1.0, 0.5, 0.5, 0.5])
    assert (found.score, found.match_length, found.source) == (3.5, 4, Source.REQUEST)
    assert found.origins is not None
    assert found.origins.tolist() == [0, 0, *([0] * 3 if origins is None else origins.tolist())]


def test_forced_tokens_are_remembered_as_long_as_they_come_true(tokenizer: Tokenizer) -> None:
    long = {"const": "a long text " * 20}
    compiler = GrammarCompiler(tokenizer.raw.to_str(), tokenizer.vocab_size, [1])
    grammar, other = compiler.compile(long), compiler.compile(long)
    whole = grammar.forced(1000).tolist()
    assert grammar.forced(5).tolist() == whole[:5]
    assert grammar.forced(0).tolist() == []
    for size in (3, 1, 7):
        taken = grammar.forced(size).tolist()
        grammar.advance(taken)
        other.advance(taken)
        other._forced = []  # computed anew
        assert grammar.forced(1000).tolist() == other.forced(1000).tolist() != []
    first = tokenizer.token_text(whole[11])[:1]  # the same text in other tokens
    split = tokenizer.encode(first).tolist()
    if split != whole[11:12]:
        grammar.advance(split)
        other.advance(split)
        other._forced = []
        assert grammar.forced(9).tolist() == other.forced(9).tolist()


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


def test_a_forced_run_longer_than_a_draft_leaves_the_other_rows_their_drafts(
    exact_model: Transformer, tokenizer: Tokenizer
) -> None:
    engine = SteppedEngine(exact_model, tokenizer, Forest())
    long = SamplingParams(temperature=0.0, json_schema={"const": "x" * 60}, max_tokens=100)
    plain = SamplingParams(temperature=0.0, max_tokens=60)
    for turn in range(2):
        engine.submit(GenerationRequest(f"free {turn}", [5, 6, 7], plain, Tags(STAGE)))
        engine.submit(GenerationRequest(f"forced {turn}", [8, 9], long, Tags(STAGE)))
        engine.run()
    [first, second] = [engine.deltas(f"forced {turn}")[-1].speculation for turn in range(2)]
    assert first is not None
    assert second is not None
    assert first.num_steps == second.num_steps < 0.4 * len(engine.output("forced 0"))
    again = engine.deltas("free 1")[-1].speculation
    assert again is not None
    assert again.num_accepted_from_shared > 30
    assert engine.output("free 0") == engine.output("free 1")


def test_a_proposer_that_can_not_draft_behind_tokens_gets_the_forced_ones_alone(
    exact_model: Transformer, tokenizer: Tokenizer
) -> None:
    plain, _, num_plain_steps = run(exact_model, tokenizer, NoDrafts(), 0.0)
    output, _, num_steps = run(exact_model, tokenizer, RandomProposer(is_tree=True), 0.0)
    assert output == plain
    assert num_steps < 0.9 * num_plain_steps
