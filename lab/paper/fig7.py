"""Figure 7: the global tree only, the request's only, both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from matplotlib.figure import Figure

from agentspec.replay.tally import total
from agentspec.reporting import plots
from lab.paper.document import table
from lab.paper.runs import LEARNED_RULE, PAPER_RULE, Outcomes, Replay, whole
from lab.paper.samples import LABELS, Traces
from lab.paper.section import Figures, Section
from lab.plots import dots

NUM_CALLS = 700  # a hundred of each stage
LEAST_CALLS = 10  # minimum calls of a listed stage
SETS = ("rsl_sql_spider_test", "rsl_sql_bird_dev_gpt4o")
PAPER = {"paper-global": "global", "paper-request": "request", "paper-stage": "both"}
LEARNED = {"learned-request": "request", "learned-stage": "both", "learned": "all trees"}
ALL = "all stages"
Stages = Mapping[str, Mapping[str, Mapping[str, float]]]  # stage -> method -> figures


def _run(traces: Traces, name: str, method: str) -> Replay:
    return Replay(traces.sample(name, NUM_CALLS), method, LEARNED_RULE if method in LEARNED else PAPER_RULE)


def _runs(traces: Traces) -> Sequence[Replay]:
    return [_run(traces, name, method) for name, method in product(SETS, (*PAPER, *LEARNED))]


def _figures(traces: Traces, outcomes: Outcomes) -> Figures:
    return {name: _by_stage(traces, name, outcomes) for name in SETS}


def _by_stage(traces: Traces, name: str, outcomes: Outcomes) -> dict[str, Any]:
    by_method = {method: outcomes[_run(traces, name, method)] for method in (*PAPER, *LEARNED)}
    stages = traces.sample(name, NUM_CALLS).stages(LEAST_CALLS)
    result = {
        stage: {
            method: total(chunk[stage] for chunk in outcome if stage in chunk).figures()
            for method, outcome in by_method.items()
        }
        for stage in stages
    }
    return result | {ALL: {method: whole(outcome).figures() for method, outcome in by_method.items()}}


def _plots(measured: Figures) -> dict[str, Figure]:
    figure, axes = plots.panels(2, 2, width=4.4, height=3.2)
    keys = {"tokens_per_step": "tokens per step", "drafted_per_step": "draft tokens per step"}
    looks = {f"paper, {trees}": (method, plots.COLOURS[method]) for method, trees in PAPER.items()}
    for (method, trees), colour in zip(LEARNED.items(), ("#a9c4e8", "#5b8fd6", "#123f7a"), strict=True):
        looks[f"learned, {trees}"] = method, colour
    for one, ((name, by_stage), (key, label)) in zip(
        axes, product(measured.items(), keys.items()), strict=True
    ):
        values = {
            shown: (colour, [by_method[method][key] for by_method in by_stage.values()])
            for shown, (method, colour) in looks.items()
        }
        dots(one, [stage.replace("_", " ") for stage in by_stage], values)
        one.set(title=LABELS[name], xlabel=label)
    for one in axes[1::2]:
        one.set_yticklabels([])
    plots.legend_below(figure, axes[0], 3)
    return {"fig7": figure}


def _text(measured: Figures) -> Iterator[str]:
    yield (
        "**The paper.** Per stage of AgenticSQL: both trees together are better than either one, except in "
        "two stages (Enrich, Extract). There the draft of the request's tree is sometimes taken though the "
        "global one's was better. The global tree beats the request's everywhere but in Combine, which "
        "copies from its prompt."
    )
    yield (
        f"**Here.** {NUM_CALLS} calls of either agent; the global tree is the stage's. For ours `all trees` "
        "adds session and workflow. Ours was not run on only the global tree, since a forest always has the "
        "request's."
    )
    yield "![tokens and draft tokens per step by stage](fig7)"
    for name, by_stage in measured.items():
        yield _table(LABELS[name], by_stage)
    yield _difference([stages for name in measured for stages in _stages(measured[name]).values()])


def _stages(by_stage: Stages) -> dict[str, Mapping[str, Mapping[str, float]]]:
    return {stage: by_method for stage, by_method in by_stage.items() if stage != ALL}


def _table(label: str, by_stage: Stages) -> str:
    headings = [f"paper, {trees}" for trees in PAPER.values()] + [
        f"learned, {trees}" for trees in LEARNED.values()
    ]
    rows = [
        [
            stage,
            *(
                f"{by_method[method]['tokens_per_step']:.2f} @ {by_method[method]['drafted_per_step']:.1f}"
                for method in (*PAPER, *LEARNED)
            ),
        ]
        for stage, by_method in by_stage.items()
    ]
    return table((f"{label}: tokens @ drafted per step", *headings), rows)


def is_better(by_method: Mapping[str, Mapping[str, float]], method: str, *others: str) -> bool:
    """True if the method has more tokens per step than each of the others."""
    return all(by_method[method]["tokens_per_step"] > by_method[one]["tokens_per_step"] for one in others)


def _difference(stages: Sequence[Mapping[str, Mapping[str, float]]]) -> str:
    both = sum(is_better(one, "paper-stage", "paper-global", "paper-request") for one in stages)
    globally = sum(is_better(one, "paper-global", "paper-request") for one in stages)
    learned = sum(is_better(one, "learned-stage", "paper-stage") for one in stages)
    less = sum(
        one["learned-stage"]["drafted_per_step"] < one["paper-stage"]["drafted_per_step"] for one in stages
    )
    wide = sum(is_better(one, "learned", "learned-stage") for one in stages)
    return (
        f"**The difference.** With the paper's rule both trees together are the best choice in {both} of "
        f"{len(stages)} stages, and the global tree beats the request's in {globally}. Where a single tree "
        "is better, the reason is the paper's: a score is a sum of estimates, a continuation seen once "
        "counts as certain, and the tree that is wrong most confidently drafts. The learned rule weighs the "
        f"trees' evidence token by token: from the same two trees it has more tokens per step in {learned} "
        f"stages and drafts less in {less}. With session and workflow trees it has still more tokens per "
        f"step in {wide}: the calls of a question quote each other's tables and SQL, which no tree of their "
        "own stage has seen."
    )


SECTION = Section("fig7", "Figure 7: global tree, request tree, both", _runs, _figures, _plots, _text)
