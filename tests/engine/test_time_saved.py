"""The embedded engine's time saved, where passes have a known cost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from agentspec.draft import Draft
from agentspec.engine.model.transformer import Transformer
from agentspec.engine.text.tokenizer import Tokenizer
from agentspec.generation import GenerationRequest, SamplingParams
from agentspec.proposer import Proposer
from agentspec.tags import Tags
from tests.support.fakes import STAGE, OracleProposer, RandomProposer, SteppedEngine

SAMPLING = SamplingParams(temperature=0.0, max_tokens=120, ignore_eos=True)
PROMPTS = [[5 + i] * 40 for i in range(6)]
PASS_S, ROW_S, PROMPT_ROW_S = 0.001, 0.0001, 0.00001


def request(number: int, **fields: Any) -> GenerationRequest:
    return GenerationRequest(f"r{number}", PROMPTS[number], SAMPLING, Tags(STAGE, **fields))


@pytest.fixture(scope="module")
def outputs(exact_model: Transformer, tokenizer: Tokenizer) -> dict[tuple[int, ...], list[int]]:
    engine = SteppedEngine(exact_model, tokenizer, num_slots=len(PROMPTS), max_model_len=256)
    for number in range(len(PROMPTS)):
        engine.submit(request(number))
    engine.run()
    return {tuple(prompt): engine.output(f"r{number}") for number, prompt in enumerate(PROMPTS)}


class TextOracle(OracleProposer):
    """It drafts the beginning of an output, too, as the forest does."""

    def draft_after(self, *args: Any) -> list[Draft]:
        raise AssertionError("no grammar forces tokens here")


def timed(model: Transformer, tokenizer: Tokenizer, proposer: Proposer, num_slots: int) -> SteppedEngine:
    """Return an engine with a clock that advances by the cost of passes and rows only."""

    def seconds() -> float:
        sizes = [len(segment.token_ids) for segments in engine.model.passes for segment in segments]
        prompts = sum(size for size in sizes if size == 40)
        return PASS_S * len(engine.model.passes) + ROW_S * (sum(sizes) - prompts) + PROMPT_ROW_S * prompts

    engine = SteppedEngine(
        model, tokenizer, proposer, clock=seconds, num_slots=num_slots, max_model_len=256, max_batch_tokens=80
    )
    return engine


def test_one_request_at_a_time(
    exact_model: Transformer, tokenizer: Tokenizer, outputs: dict[tuple[int, ...], list[int]]
) -> None:
    engine = timed(exact_model, tokenizer, OracleProposer(outputs, is_tree=False, wrong=0.2), 1)
    engine.submit(request(0, max_draft=0))
    engine.run()
    before = engine.decoder.counters.snapshot()[STAGE]
    assert before.plain_decode_s == pytest.approx(before.measured_decode_s)
    for number in range(1, 4):
        engine.submit(request(number))
        engine.run()
    stats = engine.decoder.counters.snapshot()[STAGE]
    true_s = (PASS_S + ROW_S) * stats.num_accepted_tokens - ROW_S * stats.num_draft_tokens
    assert stats.plain_decode_s - stats.measured_decode_s == pytest.approx(true_s, rel=0.05)
    assert stats.num_accepted_tokens > stats.num_steps - before.num_steps


def test_answers_that_end_in_the_pass_of_their_prompt(
    exact_model: Transformer, tokenizer: Tokenizer, outputs: dict[tuple[int, ...], list[int]]
) -> None:
    short = replace(SAMPLING, max_tokens=4)
    engine = timed(exact_model, tokenizer, TextOracle(outputs, is_tree=False, wrong=0.0), 1)
    engine.submit(request(0, max_draft=0))
    engine.run()
    before = engine.decoder.counters.snapshot()[STAGE]
    for number in range(1, 4):
        engine.submit(replace(request(number), sampling=short))
        engine.run()
    stats = engine.decoder.counters.snapshot()[STAGE]
    assert (stats.num_steps, stats.decode_s) == (before.num_steps, pytest.approx(before.decode_s))
    assert stats.num_accepted_tokens == 3 * 3
    saved_s = stats.plain_decode_s - before.plain_decode_s
    assert saved_s == pytest.approx(stats.num_accepted_tokens * (PASS_S + ROW_S), rel=0.05)


def test_several_at_a_time_hardly_a_step_of_which_is_without_drafts(
    exact_model: Transformer, tokenizer: Tokenizer
) -> None:
    engine = timed(exact_model, tokenizer, RandomProposer(is_tree=True), 3)
    for number in range(6):
        engine.submit(request(number))
    engine.run()
    stats = engine.decoder.counters.snapshot()[STAGE]
    # most drafts are wrong, and each request pays for the whole of its pass
    true_s = (PASS_S + 3 * ROW_S) * stats.num_accepted_tokens - 3 * ROW_S * stats.num_draft_tokens
    estimated_s = stats.plain_decode_s - stats.measured_decode_s
    assert estimated_s == pytest.approx(true_s, rel=0.25)
    assert estimated_s < 0


def test_a_request_that_is_drafted_for_from_its_first_step_has_no_figure(
    exact_model: Transformer, tokenizer: Tokenizer, outputs: dict[tuple[int, ...], list[int]]
) -> None:
    engine = timed(exact_model, tokenizer, OracleProposer(outputs, is_tree=False, wrong=0.2), 1)
    engine.submit(replace(request(0), sampling=replace(SAMPLING, max_tokens=20)))
    engine.run()
    stats = engine.decoder.counters.snapshot()[STAGE]
    assert stats.num_accepted_tokens > 0
    assert stats.saved_s is None or stats.measured_decode_s < stats.num_steps * PASS_S
