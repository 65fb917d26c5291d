"""Figure 8: the effect of a larger global tree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from matplotlib.figure import Figure

from agentspec.replay.methods import Rule
from agentspec.reporting import plots
from lab.paper.document import table
from lab.paper.runs import LEARNED_RULE, Outcomes, Replay, whole
from lab.paper.samples import LABELS, Traces
from lab.paper.section import Figures, Section

SETS = ("rsl_sql_spider_test", "rsl_sql_bird_dev_gpt4o", "self_refine_yelp_gpt4")
SIZES = (256, 512, 1024, 2048, 4096, 10_000)
NUM_CALLS = 350  # held out and drafted for
METHODS = {"paper-shared": Rule("chain", 32, 1.0, 0.1), "learned": LEARNED_RULE}
KEYS = {"tokens_per_step": "tokens per step", "acceptance_rate": "acceptance rate"}


def sizes(traces: Traces, name: str) -> list[int]:
    """Return numbers of outputs in the tree; the last is all outputs, at most 10,000."""
    there = min(traces.sample(name, held_out=False).size(), SIZES[-1])
    return [*(size for size in SIZES if size < there), there]


def _run(traces: Traces, name: str, method: str, size: int) -> Replay:
    before = traces.sample(name, size, held_out=False)
    return Replay(
        traces.sample(name, NUM_CALLS, held_out=True), method, METHODS[method], (before,), learns=False
    )


def _runs(traces: Traces) -> Sequence[Replay]:
    return [
        _run(traces, name, method, size)
        for name, method in product(SETS, METHODS)
        for size in sizes(traces, name)
    ]


def _figures(traces: Traces, outcomes: Outcomes) -> Figures:
    return {
        name: {
            method: {
                str(size): whole(outcomes[_run(traces, name, method, size)]).figures()
                for size in sizes(traces, name)
            }
            for method in METHODS
        }
        for name in SETS
    }


def _plots(measured: Figures) -> dict[str, Figure]:
    figure, axes = plots.panels(2, width=3.8)
    for one, (key, label) in zip(axes, KEYS.items(), strict=True):
        for (name, by_method), marker in zip(measured.items(), "os^", strict=True):
            for method, by_size in by_method.items():
                one.plot(
                    [int(size) for size in by_size],
                    [point[key] for point in by_size.values()],
                    marker=marker,
                    ms=4,
                    color=plots.COLOURS[method],
                    label=f"{LABELS[name]}, {'paper' if method != 'learned' else method}",
                )
        one.set_xscale("log", base=2)
        one.set_xticks(SIZES, [f"{size / 1000:.0f}k" if size > 1000 else f"{size}" for size in SIZES])
        one.minorticks_off()
        one.set(xlabel="outputs in the global tree", ylabel=label, ylim=(0, None))
    plots.legend_below(figure, axes[0], 3)
    return {"fig8": figure}


def _text(measured: Figures) -> Iterator[str]:
    yield (
        "**The paper.** Open-ended chat and code (WildChat, Magicoder), `alpha` 1, 256 to 10,000 outputs in "
        "the global tree: the speed-up keeps rising with the tree's size, and the acceptance rate stays "
        "nearly constant."
    )
    yield (
        "**Here.** Three data sets that have enough outputs. A fifth of their groups (databases, sessions) "
        f"is held out; drafts are made for {NUM_CALLS} calls of these. The calls of the others are replayed "
        "first, 256 or more of them. The shared trees don't change while they are measured (the learned "
        "rule's model continues learning). The paper's rule uses one shared tree and `alpha` 1; ours uses "
        "its price of 0.1."
    )
    yield "![tokens per step and acceptance rate by size of the global tree](fig8)"
    yield table(
        ("data set", "method", "outputs", "tokens/step", "acceptance rate", "drafted/step"),
        [_row(name, method, size, point) for name, method, size, point in _ends(measured)],
        2,
    )
    yield _difference(measured)


def _ends(measured: Figures) -> Iterator[tuple[str, str, str, Mapping[str, float]]]:
    """Yield the points of the smallest and the largest tree."""
    for name, by_method in measured.items():
        for method, by_size in by_method.items():
            for size in dict.fromkeys((next(iter(by_size)), list(by_size)[-1])):
                yield name, method, size, by_size[size]


def _row(name: str, method: str, size: str, point: Mapping[str, float]) -> list[str]:
    return [
        LABELS[name],
        method,
        f"{int(size):,}",
        f"{point['tokens_per_step']:.2f}",
        f"{point['acceptance_rate']:.0%}",
        f"{point['drafted_per_step']:.2f}",
    ]


def growth(by_size: Mapping[str, Mapping[str, Any]]) -> tuple[float, float]:
    """Return the gain of the largest tree: relative in tokens per step, absolute in acceptance rate."""
    first, last = (by_size[size] for size in (next(iter(by_size)), list(by_size)[-1]))
    return (
        last["tokens_per_step"] / first["tokens_per_step"] - 1,
        last["acceptance_rate"] - first["acceptance_rate"],
    )


def _difference(measured: Figures) -> str:
    grown = {
        method: [
            f"{gain:+.0%} and {100 * change:+.0f} points on {LABELS[name]}"
            for name, by_method in measured.items()
            for gain, change in [growth(by_method[method])]
        ]
        for method in METHODS
    }
    return (
        "**The difference.** From the smallest to the largest tree, tokens per step and acceptance rate "
        f"change as follows with the paper's rule: {', '.join(grown['paper-shared'])}; with ours: "
        f"{', '.join(grown['learned'])}. RSL-SQL's answers have one form, which a few hundred outputs show. "
        "The rest of an answer is names of tables and columns of held-out databases, so no tree of any size "
        "has them. Rewritten reviews (self-refine) are more like the paper's open-ended texts, where every "
        "output may add a phrase. RSL-SQL's figures are below those of figure 4: `alpha` is 1, and the "
        "calls of a session can't quote each other without learning. With `alpha` 1 longer matches mean "
        "longer drafts, which keeps the acceptance rate down. The learned rule drafts every token that is "
        "worth its price, and a larger tree has more of these."
    )


SECTION = Section("fig8", "Figure 8: the size of the global tree", _runs, _figures, _plots, _text)
