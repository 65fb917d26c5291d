from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from agentspec.config import DraftConfig
from agentspec.draft import Source
from agentspec.engine import request as engine_request
from agentspec.engine.model.transformer import Transformer
from agentspec.engine.text.tokenizer import Tokenizer
from agentspec.generation import GenerationRequest, SamplingParams, TracedStep
from agentspec.proposer import Proposer
from agentspec.tags import Tags
from tests.support.fakes import STAGE, OracleProposer, SteppedEngine

PROMPT = [5, 6, 7]
GREEDY = SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True)


@pytest.fixture
def full(exact_model: Transformer, tokenizer: Tokenizer) -> list[int]:
    engine = SteppedEngine(exact_model, tokenizer)
    engine.submit(GenerationRequest("r", PROMPT, GREEDY, Tags(STAGE)))
    engine.run()
    return engine.output("r")


@pytest.fixture
def run(exact_model: Transformer, tokenizer: Tokenizer) -> Any:
    def run(proposer: Proposer, sampling: SamplingParams = GREEDY, **fields: Any) -> SteppedEngine:
        engine = SteppedEngine(exact_model, tokenizer, proposer, draft=DraftConfig(max_tokens=8))
        engine.submit(GenerationRequest("r", PROMPT, sampling, Tags(STAGE, **fields)))
        engine.run()
        return engine

    return run


def trace_of(engine: SteppedEngine) -> tuple[TracedStep, ...]:
    *others, last = engine.deltas("r")
    assert all(delta.trace == () for delta in others)
    return last.trace


@pytest.mark.parametrize("is_tree", [False, True])
def test_the_steps_add_up_to_the_output(
    run: Any, full: list[int], tokenizer: Tokenizer, is_tree: bool
) -> None:
    engine = run(OracleProposer({tuple(PROMPT): full}, is_tree=is_tree, wrong=0.3), trace="r")
    steps = trace_of(engine)
    texts = [[step.texts[node] for node in step.accepted] + [step.own_text] for step in steps]
    assert [text for step in texts for text in step] == [tokenizer.token_text(token) for token in full]
    assert (steps[0].source, steps[0].texts) == (Source.NONE, ())
    speculation = engine.deltas("r")[-1].speculation
    assert speculation is not None
    assert len(steps) - 1 == speculation.num_steps
    assert sum(len(step.texts) for step in steps) == speculation.num_draft_tokens
    assert sum(len(step.accepted) for step in steps) == speculation.num_accepted_tokens
    assert {step.source for step in steps if step.texts} == {Source.STAGE}
    for step in steps:
        parents = (-1, *step.accepted)
        assert [step.parents[node] for node in step.accepted] == list(parents[: len(step.accepted)])


def test_an_output_that_ends_inside_a_draft(run: Any, full: list[int], tokenizer: Tokenizer) -> None:
    stop = tokenizer.token_text(full[4])
    proposer = OracleProposer({tuple(PROMPT): full}, is_tree=False, wrong=0)
    engine = run(proposer, replace(GREEDY, stop=(stop,)), trace="r")
    last = trace_of(engine)[-1]
    assert last.own_text is None
    assert 0 < len(last.accepted) < len(last.texts)
    assert last.texts[last.accepted[-1]] == stop


def test_a_trace_changes_nothing_and_costs_nothing_unasked(run: Any, full: list[int]) -> None:
    outputs = {}
    for is_traced in (False, True):
        proposer = OracleProposer({tuple(PROMPT): full}, is_tree=True, wrong=0.3)
        engine = run(proposer, trace="r" if is_traced else None)
        outputs[is_traced] = engine.output("r")
        assert bool(trace_of(engine)) is is_traced
    assert outputs[True] == outputs[False] == full


def test_a_trace_is_bounded(run: Any, full: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_request, "MAX_TRACED_STEPS", 3)
    engine = run(OracleProposer({}, is_tree=False), max_draft=0, trace="r")
    assert len(trace_of(engine)) == 3
    assert engine.output("r") == full
