"""Figure 9: outputs change from one kind, already learned, to another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product

from matplotlib.figure import Figure

from agentspec.replay.tally import total
from agentspec.reporting import plots
from lab.paper.document import table
from lab.paper.runs import (
    LEARNED_RULE,
    PAPER_RULE,
    ByStage,
    Outcomes,
    Replay,
    whole,
)
from lab.paper.samples import LABELS, Sample, Traces
from lab.paper.section import Figures, Section

OLD = ("spec_bench_vicuna7b", "codegen_gpt4_simple", "tot_text")  # open-ended: chat, code, prose
NEW = "rsl_sql_spider_test"
NUM_OLD = 500  # of each
NUM_NEW = 1000
NUM_TRAINED = 500
GAP = 10  # more calls than a session has, so that no session is on both sides
CHUNK = 25
WINDOW = 4  # chunks
METHODS = {"paper-shared": PAPER_RULE, "learned": LEARNED_RULE}
WAYS = {
    "adapting": "old outputs, learning",
    "trained": f"{NUM_TRAINED} of the new, learning",
    "trained, fixed": f"{NUM_TRAINED} of the new, fixed",
    "fixed": "old outputs, fixed",
}
LINES = {"adapting": "-", "trained": "--", "fixed": ":"}
KEYS = {"tokens_per_step": "tokens per step", "acceptance_rate": "acceptance rate"}


def _run(traces: Traces, method: str, way: str) -> Replay:
    before: tuple[Sample, ...] = tuple(traces.sample(name, NUM_OLD) for name in OLD)
    if way.startswith("trained"):
        before = (traces.sample(NEW, NUM_TRAINED, skip=NUM_NEW + GAP),)
    return Replay(traces.sample(NEW, NUM_NEW), method, METHODS[method], before, "fixed" not in way, CHUNK)


def _runs(traces: Traces) -> Sequence[Replay]:
    return [_run(traces, method, way) for method, way in product(METHODS, WAYS)]


def _figures(traces: Traces, outcomes: Outcomes) -> Figures:
    return {
        "num_old": sum(traces.sample(name, NUM_OLD).size() for name in OLD),
        "windows": {
            method: {way: windows(outcomes[_run(traces, method, way)]) for way in WAYS} for method in METHODS
        },
    }


def windows(outcome: Sequence[ByStage]) -> dict[str, dict[str, float]]:
    """Return figures over the last hundred calls, by the number of calls processed."""
    chunks = [whole([chunk]) for chunk in outcome]
    first = min(WINDOW, len(chunks))
    return {
        str(end * CHUNK): total(chunks[end - first : end]).figures() for end in range(first, len(chunks) + 1)
    }


def _plots(measured: Figures) -> dict[str, Figure]:
    figure, axes = plots.panels(2, width=4.0)
    for one, (key, label) in zip(axes, KEYS.items(), strict=True):
        for method, by_way in measured["windows"].items():
            for way, line in LINES.items():
                points = by_way[way]
                one.plot(
                    [int(end) for end in points],
                    [point[key] for point in points.values()],
                    linestyle=line,
                    color=plots.COLOURS[method],
                    label=f"{'paper' if method != 'learned' else method}: {WAYS[way]}",
                )
        one.set(
            xlabel=f"new calls processed (mean of the last {WINDOW * CHUNK})", ylabel=label, ylim=(0, None)
        )
    plots.legend_below(figure, axes[0], 2)
    return {"fig9": figure}


def _text(measured: Figures) -> Iterator[str]:
    yield (
        "**The paper.** The global tree has 4,000 outputs of WildChat when SpiderSQL's calls begin. At "
        "first the speed-up is 1.5 and 8% of the drafts are accepted; a tree of 500 outputs of SpiderSQL "
        "would have 2.6 and 20%. Outputs join the tree as they finish, and after 500 of them the two are "
        "hardly distinguishable."
    )
    yield (
        f"**Here.** {measured['num_old']:,} outputs of chat, code and prose "
        f"({', '.join(LABELS[name] for name in OLD)}) are replayed first, then {NUM_NEW:,} calls of "
        f"{LABELS[NEW]}, which add their outputs to the trees. For comparison, the same calls are replayed "
        f"after {NUM_TRAINED} calls of other sessions of the new data set and no old ones. Both are also "
        "replayed with shared trees that stay fixed from then on. Each point is over the last "
        f"{WINDOW * CHUNK} calls."
    )
    yield "![tokens per step and acceptance rate after the change](fig9)"
    yield table(
        ("method", "calls", *(f"{way}: tokens/step, accepted" for way in WAYS.values())),
        [
            [method, f"to {int(end):,}", *(_cell(by_way[way][end]) for way in WAYS)]
            for method, by_way in measured["windows"].items()
            for end in dict.fromkeys(moments(by_way["adapting"]))
        ],
        2,
    )
    yield _difference(measured["windows"])


def moments(points: Mapping[str, object]) -> tuple[str, str, str]:
    """Return the first window, the one after NUM_TRAINED more calls, and the last."""
    first, *_, last = (*points, *points)
    later = str(NUM_TRAINED + WINDOW * CHUNK)
    return first, later if later in points else last, last


def _cell(point: Mapping[str, float]) -> str:
    return f"{point['tokens_per_step']:.2f}, {point['acceptance_rate']:.0%}"


def _difference(by_method: Mapping[str, Mapping[str, Mapping[str, Mapping[str, float]]]]) -> str:
    gaps = []
    for method, by_way in by_method.items():
        at_first, after, _ = (
            by_way["adapting"][end]["tokens_per_step"] / by_way["trained"][end]["tokens_per_step"]
            for end in moments(by_way["adapting"])
        )
        gaps.append(f"{method} {at_first:.0%}, then {after:.0%}")
    return (
        "**The difference.** Trees that learned other outputs reach the following share of the tokens per "
        f"step of trees that learned {NUM_TRAINED} calls of the new kind. The first figure is over the first "
        f"{WINDOW * CHUNK} calls, the second over those that follow the first {NUM_TRAINED}: "
        f"{'; '.join(gaps)}. The paper compares with a fixed tree; here both learn. The calls of an agent's "
        "session quote each other, which a fixed tree misses, with any training (fixed). For the same "
        "reason much is recovered within the first window. The rest is a matter of size, as the other trees "
        f"always have {NUM_TRAINED} calls more of the kind. Besides its trees the learned rule has a model "
        "to adapt. Without any learning only the request's own tree contributes, which has the prompt."
    )


SECTION = Section("fig9", "Figure 9: adapting to a change of traffic", _runs, _figures, _plots, _text)
