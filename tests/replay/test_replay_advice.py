"""The recommendation, compared with figures worked by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agentspec.replay.advice import advise, figures, lines, markdown, together
from agentspec.replay.costs import ROW_COSTS, fitting_price, speedup
from agentspec.replay.jobs import Replayed
from agentspec.replay.methods import Rule
from agentspec.replay.tally import Tally, total


def tally(steps: int, tokens: int, drafted: int) -> Tally:
    return Tally(steps=steps, tokens=tokens, drafted=drafted, accepted=tokens - steps)


REPLAYED = Replayed(
    {
        "eager": {"plan": tally(40, 100, 4000), "sql": tally(10, 100, 1000)},  # 4 tokens a step, 100 drafted
        "wary": {"plan": tally(60, 100, 60), "sql": tally(20, 100, 20)},  # 2.5 tokens a step, 1 drafted
    },
    4812,
)


def test_a_step_costs_what_it_verifies():
    assert speedup(tally(10, 40, 100), 0.1) == pytest.approx(4 / (1 + 0.1 * 10))
    assert speedup(tally(10, 10, 0), 0.1) == 1.0


def test_the_best_method_depends_on_what_verifying_costs():
    advice = advise(REPLAYED, Rule("tree", 64))
    assert (advice.typical.tokens_per_step, advice.typical.saving) == (2.5, 0.6)
    gpu, *_, cpu = advice.choices
    assert (gpu.method, gpu.speedup, gpu.is_worth_it) == ("eager", pytest.approx(4 / 1.5), True)
    assert (cpu.method, cpu.speedup, cpu.is_worth_it) == ("wary", pytest.approx(2.5 / 1.1), True)


def test_a_method_with_a_price_is_judged_at_the_one_that_fits():
    plan = tally(50, 200, 50)  # 4 tokens a step, 1 drafted
    fitted = {cost: {"eager": {"plan": plan}} for cost in ROW_COSTS}
    advice = advise(replace(REPLAYED, at_costs=fitted), Rule())
    for choice in advice.choices:
        assert choice.method == "eager"
        assert choice.speedup == pytest.approx(4 / (1 + choice.row_cost))
        assert choice.price == fitting_price(choice.row_cost)
    text = list(lines("calls", advice))
    assert "(--min-prob 0.2)." in text[5]
    assert "--min-prob 0.02)." in text[1]
    assert figures(advice)["settings"].endswith("--min-prob 0.02")


def test_prices_rise_with_costs_up_to_an_accepted_token():
    prices = [fitting_price(cost) for cost in (0.0, *ROW_COSTS, 0.9)]
    assert prices == sorted(prices)
    assert (prices[0], prices[-1]) == (0.0, 1.0)


def test_stages_are_those_of_a_choice():
    stages = advise(REPLAYED, Rule()).choices[0].stages
    assert {name: (one.tokens_per_step, one.share) for name, one in stages.items()} == {
        "plan": (2.5, pytest.approx(60 / 150)),
        "sql": (10.0, pytest.approx(90 / 150)),
    }


def test_drafts_that_cost_more_than_they_save_are_not_worth_it():
    replayed = Replayed({"eager": {"s": tally(80, 100, 4000)}}, 1)
    advice = advise(replayed, Rule())
    assert not any(choice.is_worth_it for choice in advice.choices)
    text = "\n".join(lines("calls", advice))
    assert "calls: this call: drafts do not pay on a GPU with 8 clients." in text
    assert "not worth it, eager decodes 0.21 times as fast" in text


def test_it_is_said_in_plain_words_and_in_figures():
    advice = advise(REPLAYED, Rule("tree", 64))
    text = list(lines("calls", advice))
    assert text[0] == (
        "calls: these 4,812 calls: 2.5x fewer decode steps, 2.5x faster on a GPU with 8 clients with the "
        "method wary. sql pays most: 67% of the saved steps."
    )
    assert "wary has 2.50 tokens per step, 60% of the decode steps saved" in text[1]
    assert "--mode tree --max-draft 64 --alpha 4 --min-prob 0.1" in text[1]
    assert text[5] == (
        "  On a CPU (0.1 steps per verified token): worth it, wary decodes 2.27 times as fast as without."
    )
    assert text[6:] == [
        "  plan  1.67 tokens per step, 33% of the saved steps",
        "  sql   5.00 tokens per step, 67% of the saved steps",
    ]
    assert "| sql | 5.00 | 67% |" in list(markdown(advice))
    measured = figures(advice)
    assert measured["by_row_cost"]["0.005"]["method"] == "eager"
    assert measured["stages"]["plan"] == {
        "tokens_per_step": pytest.approx(100 / 60),
        "share_of_saved": pytest.approx(1 / 3),
    }


def test_files_together_have_one_answer():
    """Each file has its best method; together the one with the most counts."""
    other = Replayed({"eager": {"plan": tally(10, 100, 0)}, "wary": {"plan": tally(100, 100, 0)}}, 8)
    found = together({"a": REPLAYED, "b": other})
    assert (found.num_calls, set(found.by_method["eager"])) == (4820, {"a/plan", "a/sql", "b/plan"})
    assert {name: total(one.values()).steps for name, one in found.by_method.items()} == {
        "eager": 60,
        "wary": 180,
    }
    said = next(lines("all files", advise(found, Rule())))
    assert said.startswith("all files: these 4,820 calls: 5.0x fewer decode steps, 2.7x faster on ")


def test_a_price_that_one_file_lacks_does_not_count_for_all_files():
    fitted = {cost: {"eager": {"plan": tally(5, 100, 0)}} for cost in ROW_COSTS}
    both = {"a": replace(REPLAYED, at_costs=fitted), "b": replace(REPLAYED, at_costs=fitted)}
    assert together(both).at_costs[0.01]["eager"]["b/plan"].steps == 5
    assert together({**both, "c": REPLAYED}).at_costs[0.01] == {}


def test_no_calls_save_nothing():
    advice = advise(Replayed({"eager": {}}), Rule())
    assert (advice.typical.tokens_per_step, advice.typical.saving) == (0.0, 0.0)
    assert len(list(lines("calls", advice))) == 2 + len(ROW_COSTS)
