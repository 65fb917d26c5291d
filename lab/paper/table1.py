"""Table 1: entropy as a predictor of the gain from drafting."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from agentspec.replay.tally import total
from agentspec.reporting import plots
from lab.paper import fig4
from lab.paper.document import table
from lab.paper.runs import LEARNED_RULE, Outcomes, Replay, Run, Texts
from lab.paper.samples import LABELS, Traces
from lab.paper.section import Figures, Section

NUM_CALLS = fig4.NUM_CALLS
LEAST_CALLS = 10  # minimum calls of a listed stage
METHODS = {"paper-global": fig4.CHAIN, "paper-shared": fig4.CHAIN, "learned": LEARNED_RULE}


def _run(traces: Traces, name: str, method: str) -> Replay:
    return Replay(traces.sample(name, NUM_CALLS), method, METHODS[method])


def _runs(traces: Traces) -> Sequence[Run]:
    runs: list[Run] = [_run(traces, name, method) for name in LABELS for method in METHODS]
    return runs + [Texts(traces.sample(name)) for name in LABELS]


def _figures(traces: Traces, outcomes: Outcomes) -> Figures:
    return {name: _stages(traces, name, outcomes) for name in LABELS}


def _stages(traces: Traces, name: str, outcomes: Outcomes) -> dict[str, Any]:
    entropy = outcomes[Texts(traces.sample(name))]["entropy_bits"]
    by_method = {method: outcomes[_run(traces, name, method)] for method in METHODS}
    return {
        stage: {
            "entropy_bits": entropy[stage],
            "tokens_per_step": {
                method: total(chunk[stage] for chunk in outcome).tokens_per_step
                for method, outcome in by_method.items()
            },
        }
        for stage in traces.sample(name, NUM_CALLS).stages(LEAST_CALLS)
    }


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """Return Spearman's correlation: 1 if both rise together, -1 if opposed; nan if either is constant."""
    ranks = [_ranks(np.asarray(values, float)) for values in (first, second)]
    if any(len(one) < 2 or one.std() == 0 for one in ranks):
        return float("nan")
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return ranks from 1; equal values have the mean of their ranks."""
    below = (values[:, None] > values).sum(axis=1)
    alike = (values[:, None] == values).sum(axis=1)
    return np.asarray(below + (alike + 1) / 2, np.float64)


def _points(measured: Figures, method: str) -> tuple[list[float], list[float]]:
    stages = [one for by_stage in measured.values() for one in by_stage.values()]
    return [one["entropy_bits"] for one in stages], [one["tokens_per_step"][method] for one in stages]


def _plots(measured: Figures) -> dict[str, Figure]:
    figure, axes = plots.panels(1, width=5.6, height=4)
    colours = {name: f"C{i}" if i < 10 else "black" for i, name in enumerate(measured)}
    for name, by_stage in measured.items():
        axes[0].plot(
            [one["entropy_bits"] for one in by_stage.values()],
            [one["tokens_per_step"]["learned"] for one in by_stage.values()],
            "o",
            color=colours[name],
            label=LABELS[name],
        )
    axes[0].set_yscale("log", base=2)
    axes[0].set_yticks([1, 2, 4, 8, 16], ["1", "2", "4", "8", "16"])
    axes[0].set(xlabel="empirical entropy, bits", ylabel="tokens per step, learned")
    plots.legend_below(figure, axes[0], 4)
    return {"table1": figure}


def _text(measured: Figures) -> Iterator[str]:
    yield (
        "**The paper.** The mean entropy of a suffix tree's nodes, from about a hundred outputs, predicts "
        "whether SuffixDecoding suits a task: 0.09 to 1.5 for the stages of AgenticSQL, 2.5 for Spider, 3.0 "
        "for Magicoder, 3.4 for WildChat, in the order of the gain from drafting there."
    )
    yield (
        "**Here.** The entropy in bits of each stage's first hundred outputs, next to tokens per step as in "
        "figure 4. The paper gives no unit and no weights, so the digits differ."
    )
    yield "![tokens per step against entropy by stage](table1)"
    yield table(
        ("data set", "stage", "entropy, bits", *(f"{method}, tokens/step" for method in METHODS)),
        [
            [
                LABELS[name],
                stage,
                f"{one['entropy_bits']:.2f}",
                *(f"{x:.2f}" for x in one["tokens_per_step"].values()),
            ]
            for name, by_stage in measured.items()
            for stage, one in by_stage.items()
        ],
        2,
    )
    yield _difference({method: rank_correlation(*_points(measured, method)) for method in METHODS}, measured)


def _difference(correlations: Mapping[str, float], measured: Figures) -> str:
    num_stages = sum(map(len, measured.values()))
    return (
        f"**The difference.** Over {num_stages} stages the rank correlation of entropy and tokens per step "
        f"(-1 would be a perfect prediction) is {correlations['paper-shared']:.2f} with the paper's two "
        f"trees and {correlations['learned']:.2f} with the learned rule, but "
        f"{correlations['paper-global']:.2f} with only the stage's own tree. Entropy describes a stage's "
        "outputs. It does not cover text that a call copies from its prompt or from other calls of its "
        "session: 3_binary_selection of RSL-SQL mostly repeats earlier text. Entropy therefore estimates "
        "the value of a tree of outputs. For an agent that quotes itself a replay is more informative."
    )


SECTION = Section("table1", "Table 1: entropy as a predictor", _runs, _figures, _plots, _text)
