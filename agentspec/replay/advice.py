"""Recommendation from a replay: whether to speculate, with which method, and the decode steps saved."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from agentspec.replay.jobs import Replayed
from agentspec.replay.methods import Rule
from agentspec.replay.tally import Tally, total

ROW_COSTS = {0.005: "GPU, memory bound", 0.1: "CPU or a full batch"}  # per verified token, in plain steps


@dataclass(frozen=True, slots=True)
class Choice:
    """The fastest method at a given cost of a verified token.

    Attributes:
        row_cost: c, in plain decode steps.
        speedup: speed-up over decoding without drafts.
    """

    row_cost: float
    method: str
    speedup: float

    @property
    def is_worth_it(self) -> bool:
        """True if drafting makes decoding faster."""
        return self.speedup > 1


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage under the best method. ``entropy`` is in bits."""

    entropy: float
    tokens_per_step: float


@dataclass(frozen=True, slots=True)
class Advice:
    """The best of the methods that were run on a file.

    Attributes:
        method: the method with the most tokens per step.
        rule: the settings of the run.
        saving: the share of decode steps that the method saves.
        choices: the fastest method for each cost in ROW_COSTS.
    """

    method: str
    rule: Rule
    tokens_per_step: float
    saving: float
    choices: tuple[Choice, ...]
    stages: dict[str, Stage]


def speedup(tally: Tally, row_cost: float) -> float:
    """Return the speed-up over decoding without drafts.

    A step that verifies k draft tokens costs 1 + c * k plain steps. Drafting counts as free: it takes
    microseconds, and a step takes milliseconds.
    """
    return tally.tokens_per_step / (1 + row_cost * tally.drafted_per_step)


def advise(replayed: Replayed, rule: Rule) -> Advice:
    """Return the advice for a replayed file. If methods are equally good, the first one wins."""
    totals = {method: total(by_stage.values()) for method, by_stage in replayed.by_method.items()}
    best = max(totals, key=lambda method: totals[method].tokens_per_step)
    tally = totals[best]
    return Advice(
        best,
        rule,
        tally.tokens_per_step,
        1 - tally.steps / tally.tokens if tally.tokens else 0.0,
        tuple(_fastest(totals, row_cost) for row_cost in ROW_COSTS),
        {
            stage: Stage(replayed.entropy[stage], one.tokens_per_step)
            for stage, one in sorted(replayed.by_method[best].items())
        },
    )


def _fastest(totals: Mapping[str, Tally], row_cost: float) -> Choice:
    speedups = {method: speedup(tally, row_cost) for method, tally in totals.items()}
    best = max(speedups, key=speedups.__getitem__)
    return Choice(row_cost, best, speedups[best])


def lines(name: str, advice: Advice) -> Iterator[str]:
    """Yield the advice as lines of plain text."""
    yield f"{name}: {_saved(advice)}"
    for choice in advice.choices:
        yield f"  {_judged(choice)}"
    width = max(map(len, advice.stages), default=0)
    for stage, one in advice.stages.items():
        yield f"  {stage:{width}}  entropy {one.entropy:.2f} bits, {one.tokens_per_step:.2f} tokens per step"


def markdown(advice: Advice) -> Iterator[str]:
    """Yield the advice as a Markdown paragraph and a table."""
    yield " ".join((_saved(advice), *map(_judged, advice.choices)))
    yield ""
    yield "| stage | entropy, bits | tokens/step |"
    yield "|---|--:|--:|"
    for stage, one in advice.stages.items():
        yield f"| {stage} | {one.entropy:.2f} | {one.tokens_per_step:.2f} |"
    yield ""


def settings(rule: Rule) -> str:
    """Return the rule's settings as command-line options."""
    sizes = f"--max-draft {rule.max_tokens} --alpha {rule.alpha:g} --min-prob {rule.min_prob:g}"
    return f"--mode {rule.mode} {sizes}"


def _saved(advice: Advice) -> str:
    gains = f"{advice.tokens_per_step:.2f} tokens per step, {advice.saving:.0%} of the decode steps saved"
    return f"{advice.method} does best with {gains} ({settings(advice.rule)})."


def _judged(choice: Choice) -> str:
    verdict = "worth it" if choice.is_worth_it else "not worth it"
    cost = f"{choice.row_cost:g} steps per verified token ({ROW_COSTS[choice.row_cost]})"
    return f"At {cost}: {verdict}, {choice.method} decodes {choice.speedup:.2f} times as fast as without."


def figures(advice: Advice) -> dict[str, Any]:
    """Return the advice's figures for the JSON report."""
    return {
        "method": advice.method,
        "settings": settings(advice.rule),
        "tokens_per_step": advice.tokens_per_step,
        "saving": advice.saving,
        "by_row_cost": {
            f"{choice.row_cost:g}": {
                "method": choice.method,
                "speedup": choice.speedup,
                "is_worth_it": choice.is_worth_it,
            }
            for choice in advice.choices
        },
        "stages": {
            stage: {"entropy_bits": one.entropy, "tokens_per_step": one.tokens_per_step}
            for stage, one in advice.stages.items()
        },
    }
