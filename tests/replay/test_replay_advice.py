"""The recommendation, compared with figures worked by hand."""

from __future__ import annotations

import pytest

from agentspec.replay.advice import advise, figures, lines, markdown, speedup
from agentspec.replay.jobs import Replayed
from agentspec.replay.methods import Rule
from agentspec.replay.tally import Tally


def tally(steps: int, tokens: int, drafted: int) -> Tally:
    return Tally(steps=steps, tokens=tokens, drafted=drafted, accepted=tokens - steps)


REPLAYED = Replayed(
    {
        "eager": {"plan": tally(40, 100, 4000), "sql": tally(10, 100, 1000)},  # 4 tokens a step, 100 drafted
        "wary": {"plan": tally(60, 100, 60), "sql": tally(20, 100, 20)},  # 2.5 tokens a step, 1 drafted
    },
    {"plan": 1.5, "sql": 0.25},
)


def test_a_step_costs_what_it_verifies():
    assert speedup(tally(10, 40, 100), 0.1) == pytest.approx(4 / (1 + 0.1 * 10))
    assert speedup(tally(10, 10, 0), 0.1) == 1.0


def test_the_best_method_depends_on_what_verifying_costs():
    advice = advise(REPLAYED, Rule("tree", 64))
    assert (advice.method, advice.tokens_per_step, advice.saving) == ("eager", 4.0, 0.75)
    gpu, cpu = advice.choices
    assert (gpu.method, gpu.speedup, gpu.is_worth_it) == ("eager", pytest.approx(4 / 1.5), True)
    assert (cpu.method, cpu.speedup, cpu.is_worth_it) == ("wary", pytest.approx(2.5 / 1.1), True)


def test_stages_are_those_of_the_best_method():
    stages = advise(REPLAYED, Rule()).stages
    assert {name: (one.entropy, one.tokens_per_step) for name, one in stages.items()} == {
        "plan": (1.5, 2.5),
        "sql": (0.25, 10.0),
    }


def test_drafts_that_cost_more_than_they_save_are_not_worth_it():
    replayed = Replayed({"eager": {"s": tally(80, 100, 4000)}}, {"s": 6.0})
    advice = advise(replayed, Rule())
    assert [choice.is_worth_it for choice in advice.choices] == [False, False]
    assert "not worth it, eager decodes 0.21 times as fast" in "\n".join(lines("calls", advice))


def test_it_is_said_in_plain_words_and_in_figures():
    advice = advise(REPLAYED, Rule("tree", 64))
    text = list(lines("calls", advice))
    assert text[0].startswith(
        "calls: eager does best with 4.00 tokens per step, 75% of the decode steps saved"
    )
    assert "--mode tree --max-draft 64 --alpha 4 --min-prob 0.1" in text[0]
    assert "0.1 steps per verified token (CPU or a full batch): worth it, wary decodes 2.27" in text[2]
    assert text[3:] == [
        "  plan  entropy 1.50 bits, 2.50 tokens per step",
        "  sql   entropy 0.25 bits, 10.00 tokens per step",
    ]
    assert "| sql | 0.25 | 10.00 |" in list(markdown(advice))
    measured = figures(advice)
    assert measured["by_row_cost"]["0.005"]["method"] == "eager"
    assert measured["stages"]["plan"] == {"entropy_bits": 1.5, "tokens_per_step": 2.5}


def test_no_calls_save_nothing():
    advice = advise(Replayed({"eager": {}}, {}), Rule())
    assert (advice.tokens_per_step, advice.saving) == (0.0, 0.0)
    assert len(list(lines("calls", advice))) == 3
