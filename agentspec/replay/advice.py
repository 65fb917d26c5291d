"""Recommendation from a replay: whether to speculate, with which method, and the decode steps saved."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from agentspec.replay.costs import ROW_COSTS, TYPICAL, fitting_price, speedup
from agentspec.replay.jobs import ByMethod, Replayed
from agentspec.replay.methods import Rule
from agentspec.replay.tally import Tally, total


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage under a choice. ``share`` is its part of all decode steps that the choice saves."""

    tokens_per_step: float
    share: float


@dataclass(frozen=True, slots=True)
class Choice:
    """The fastest method at a given cost of a verified token.

    Attributes:
        row_cost: c, in plain decode steps.
        speedup: speed-up over decoding without drafts.
        price: least chance of a draft token with which it ran; None = it has none, or that of the run.
        saving: the share of decode steps that it saves.
    """

    row_cost: float
    method: str
    speedup: float
    price: float | None
    tokens_per_step: float
    saving: float
    stages: dict[str, Stage]

    @property
    def is_worth_it(self) -> bool:
        """True if drafting makes decoding faster."""
        return self.speedup > 1


@dataclass(frozen=True, slots=True)
class Advice:
    """The best of the methods that were run on a file.

    Attributes:
        rule: settings of the run.
        num_calls: how many were replayed.
        choices: the fastest method for each cost in ROW_COSTS.
    """

    rule: Rule
    num_calls: int
    choices: tuple[Choice, ...]

    @property
    def typical(self) -> Choice:
        """The choice that is named first."""
        return next(choice for choice in self.choices if choice.row_cost == TYPICAL)


def advise(replayed: Replayed, rule: Rule) -> Advice:
    """Return the advice for a replayed file. If methods are equally good, the first one wins."""
    choices = tuple(_fastest(replayed, row_cost) for row_cost in ROW_COSTS)
    return Advice(rule, replayed.num_calls, choices)


def together(replayed: Mapping[str, Replayed]) -> Replayed:
    """Return several files as one. A stage's name begins with that of its file.

    A method counts if it ran on all files.
    """

    def named(parts: Mapping[str, ByMethod]) -> ByMethod:
        return {
            method: {
                f"{name}/{stage}": one for name, part in parts.items() for stage, one in part[method].items()
            }
            for method in next(iter(parts.values()))
            if all(method in part for part in parts.values())
        }

    costs = dict.fromkeys(cost for one in replayed.values() for cost in one.at_costs)
    return Replayed(
        named({name: one.by_method for name, one in replayed.items()}),
        sum(one.num_calls for one in replayed.values()),
        {cost: named({name: one.at_costs.get(cost, {}) for name, one in replayed.items()}) for cost in costs},
    )


def _fastest(replayed: Replayed, row_cost: float) -> Choice:
    """Return the fastest method. One with a price is judged at the price that fits, if it ran with that."""
    fitted = replayed.at_costs.get(row_cost, {})
    ran = {**replayed.by_method, **fitted}
    speedups = {method: speedup(total(by_stage.values()), row_cost) for method, by_stage in ran.items()}
    best = max(speedups, key=speedups.__getitem__)
    tally = total(ran[best].values())
    return Choice(
        row_cost,
        best,
        speedups[best],
        fitting_price(row_cost) if best in fitted else None,
        tally.tokens_per_step,
        1 - tally.steps / tally.tokens if tally.tokens else 0.0,
        {
            stage: Stage(one.tokens_per_step, _saved_share(one, tally))
            for stage, one in sorted(ran[best].items())
        },
    )


def _saved_share(stage: Tally, all_stages: Tally) -> float:
    saved = all_stages.tokens - all_stages.steps
    return (stage.tokens - stage.steps) / saved if saved else 0.0


def lines(name: str, advice: Advice) -> Iterator[str]:
    """Yield the advice as lines of plain text."""
    yield f"{name}: {_answer(advice)}"
    yield f"  {_saved(advice)}"
    for choice in advice.choices:
        yield f"  {_judged(choice)}"
    width = max(map(len, advice.typical.stages), default=0)
    for stage, one in advice.typical.stages.items():
        saved = f"{one.share:.0%} of the saved steps"
        yield f"  {stage:{width}}  {one.tokens_per_step:.2f} tokens per step, {saved}"


def markdown(advice: Advice) -> Iterator[str]:
    """Yield the advice as a Markdown paragraph and a table."""
    yield " ".join((_answer(advice), _saved(advice), *map(_judged, advice.choices)))
    yield ""
    yield "| stage | tokens/step | of the saved steps |"
    yield "|---|--:|--:|"
    for stage, one in advice.typical.stages.items():
        yield f"| {stage} | {one.tokens_per_step:.2f} | {one.share:.0%} |"
    yield ""


def settings(rule: Rule) -> str:
    """Return the rule's settings as command-line options."""
    sizes = f"--max-draft {rule.max_tokens} --alpha {rule.alpha:g} --min-prob {rule.min_prob:g}"
    return f"--mode {rule.mode} {sizes}"


def _answer(advice: Advice) -> str:
    """Return what the replay means to those who pay for the engine."""
    choice, where = advice.typical, ROW_COSTS[TYPICAL]
    calls = "this call" if advice.num_calls == 1 else f"these {advice.num_calls:,} calls"
    if not choice.is_worth_it:
        return f"{calls}: drafts do not pay on {where}."
    answer = (
        f"{calls}: {choice.tokens_per_step:.1f}x fewer decode steps, {choice.speedup:.1f}x faster on {where} "
        f"with the method {choice.method}"
    )
    if len(choice.stages) < 2:
        return f"{answer}."
    most = max(choice.stages, key=lambda stage: choice.stages[stage].share)
    return f"{answer}. {most} pays most: {choice.stages[most].share:.0%} of the saved steps."


def _saved(advice: Advice) -> str:
    choice = advice.typical
    gains = f"{choice.tokens_per_step:.2f} tokens per step, {choice.saving:.0%} of the decode steps saved"
    return f"{choice.method} has {gains} ({settings(_rule(advice))})."


def _rule(advice: Advice) -> Rule:
    """Return the settings with which the typical choice ran."""
    price = advice.typical.price
    return advice.rule if price is None else replace(advice.rule, min_prob=price)


def _judged(choice: Choice) -> str:
    verdict = "worth it" if choice.is_worth_it else "not worth it"
    price = "" if choice.price is None else f" (--min-prob {choice.price:g})"
    where = f"On {ROW_COSTS[choice.row_cost]} ({choice.row_cost:g} steps per verified token)"
    return (
        f"{where}: {verdict}, {choice.method} decodes {choice.speedup:.2f} times as fast as without{price}."
    )


def figures(advice: Advice) -> dict[str, Any]:
    """Return the advice's figures for the JSON report."""
    return {
        "method": advice.typical.method,
        "settings": settings(_rule(advice)),
        "num_calls": advice.num_calls,
        "tokens_per_step": advice.typical.tokens_per_step,
        "saving": advice.typical.saving,
        "by_row_cost": {
            f"{choice.row_cost:g}": {
                "method": choice.method,
                "speedup": choice.speedup,
                "price": choice.price,
                "is_worth_it": choice.is_worth_it,
            }
            for choice in advice.choices
        },
        "stages": {
            stage: {
                "tokens_per_step": one.tokens_per_step,
                "share_of_saved": one.share,
            }
            for stage, one in advice.typical.stages.items()
        },
    }
