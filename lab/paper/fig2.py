"""Figure 2: match length against accepted tokens, and limits on drafts by match length."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from agentspec.replay.methods import Rule
from agentspec.replay.tally import MATCH_BUCKETS, MATCH_LABELS, Tally
from agentspec.reporting import plots
from lab.paper.document import table
from lab.paper.runs import Outcomes, Replay, whole
from lab.paper.samples import LABELS, Traces
from lab.paper.section import Figures, Section
from lab.replay.curve import Curve, Point

NUM_CALLS = 200
SETS = ("rsl_sql_spider_test", "tau_bench_airline_gpt4o", "aider_swebench", "spec_bench_vicuna7b")
MOST = 64
NO_ALPHA = 1e9
SIZES = (1, 2, 4, 8, 16, 32, MOST)
ALPHAS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
PRICES = (0.7, 0.5, 0.35, 0.25, 0.17, 0.11, 0.07, 0.04, 0.02)
SHORT, LONG = "1", "4"  # match lengths named in the text
LEAST_DRAFTS = 50  # minimum drafts of a match length, for its mean to be shown
AT_SIZE = 4  # the constant limit to compare with

RULES: Mapping[str, Mapping[float, Rule]] = {
    "constant": {size: Rule("chain", size, NO_ALPHA, 0.0) for size in SIZES},
    "adaptive": {alpha: Rule("chain", MOST, alpha, 0.0) for alpha in ALPHAS},
    "learned": {price: Rule("chain", MOST, min_prob=price) for price in PRICES},
}
BY_MATCH = {"paper-shared": RULES["constant"][MOST], "learned": RULES["learned"][PRICES[-1]]}
LOOKS = {
    "constant": ("#8c8c8c", "s"),
    "adaptive": (plots.COLOURS["paper-shared"], "o"),
    "learned": ("#1f5fb4", "D"),
}


def _method(limit: str) -> str:
    return "learned" if limit == "learned" else "paper-shared"


def _run(traces: Traces, name: str, method: str, rule: Rule) -> Replay:
    return Replay(traces.sample(name, NUM_CALLS), method, rule)


def _runs(traces: Traces) -> Sequence[Replay]:
    return [
        _run(traces, name, _method(limit), rule)
        for name in SETS
        for limit, rules in RULES.items()
        for rule in rules.values()
    ]


def _figures(traces: Traces, outcomes: Outcomes) -> Figures:
    def tally(name: str, method: str, rule: Rule) -> Tally:
        return whole(outcomes[_run(traces, name, method, rule)])

    return {
        "accepted_by_match": {
            method: {name: accepted_by_match(tally(name, method, rule)) for name in SETS}
            for method, rule in BY_MATCH.items()
        },
        "by_limit": {
            name: {
                limit: {
                    f"{value:g}": tally(name, _method(limit), rule).figures() for value, rule in rules.items()
                }
                for limit, rules in RULES.items()
            }
            for name in SETS
        },
    }


def accepted_by_match(tally: Tally) -> dict[str, float]:
    """Return mean accepted tokens of a draft by the length of its match; 4 means 4 to 7 tokens."""
    return {
        str(size): one.accepted / one.drafts
        for size, one in sorted(tally.by_match.items())
        if size and one.drafts >= LEAST_DRAFTS
    }


def gains(by_limit: Mapping[str, Mapping[str, Mapping[str, float]]]) -> dict[str, float | None]:
    """Return gains in tokens per step over a constant limit of AT_SIZE, at as many draft tokens per step."""
    constant = by_limit["constant"][str(AT_SIZE)]
    result: dict[str, float | None] = {}
    for limit in ("adaptive", "learned"):
        points = [Point(one["drafted_per_step"], one["tokens_per_step"]) for one in by_limit[limit].values()]
        reached = Curve(points, at_zero=1.0).gained(constant["drafted_per_step"])
        result[limit] = None if reached is None else reached / constant["tokens_per_step"] - 1
    return result


def _plots(measured: Figures) -> dict[str, Figure]:
    first, axes = plots.panels(2, width=3.6)
    for one, (method, by_set) in zip(axes, measured["accepted_by_match"].items(), strict=True):
        for name, by_size in by_set.items():
            one.plot(
                [int(size) for size in by_size], list(by_size.values()), marker="o", ms=4, label=LABELS[name]
            )
        one.plot(MATCH_BUCKETS, MATCH_BUCKETS, ":", color="#8c8c8c", label="as many as match")
        one.set_xscale("log", base=2)
        one.set_yscale("log", base=2)
        one.set_xticks(MATCH_BUCKETS, MATCH_LABELS.values())
        one.set_yticks(MATCH_BUCKETS, [str(size) for size in MATCH_BUCKETS])
        one.set(title=method, xlabel="match length, tokens", ylabel="accepted tokens per draft")
    plots.legend_below(first, axes[0], len(SETS) + 1)

    second, axes = plots.panels(2, 2, width=3.6)
    for one, (name, by_limit) in zip(axes, measured["by_limit"].items(), strict=True):
        _draw_limits(one, by_limit)
        one.set(title=LABELS[name], xlabel="tokens per step", ylabel="acceptance rate", ylim=(0, None))
    plots.legend_below(second, axes[0], len(LOOKS))
    return {"fig2a": first, "fig2b": second}


def _draw_limits(axes: Axes, by_limit: Mapping[str, Mapping[str, Mapping[str, float]]]) -> None:
    labels = {
        "constant": "constant limit",
        "adaptive": "limit of alpha × match length",
        "learned": "learned, by price",
    }
    for limit, points in by_limit.items():
        colour, marker = LOOKS[limit]
        axes.plot(
            [one["tokens_per_step"] for one in points.values()],
            [one["acceptance_rate"] for one in points.values()],
            color=colour,
            marker=marker,
            ms=3.5,
            label=labels[limit],
        )


def _text(measured: Figures) -> Iterator[str]:
    yield (
        "**The paper.** (a) The longer the match, the more of a draft is accepted, which is why a draft may "
        "be `alpha` times as long as its match. (b) Such a limit gives more speed at the same acceptance "
        "rate than one that is the same for all drafts; `alpha` between 1 and 4 is recommended."
    )
    by_set = measured["accepted_by_match"]["paper-shared"]
    spans = [
        f"{LABELS[name]} {sizes[SHORT]:.1f} and {sizes[LONG]:.1f}"
        for name, sizes in by_set.items()
        if SHORT in sizes and LONG in sizes
    ]
    yield (
        f"**Here.** (a) Drafts of up to {MOST} tokens for any match length, so that the limit does not "
        f"determine the result. Accepted tokens per draft after matches of one token and of {LONG} to "
        f"{2 * int(LONG) - 1}, the paper's rule: {', '.join(spans)}."
    )
    yield "![accepted tokens per draft by match length](fig2a)"
    yield (
        "(b) The same runs with other limits, and ours over prices. A point further up and to the right is "
        f"better. The table compares at as many draft tokens per step as a constant limit of {AT_SIZE} "
        "tokens has."
    )
    yield "![acceptance rate against tokens per step](fig2b)"
    compared = {name: gains(by_limit) for name, by_limit in measured["by_limit"].items()}
    yield table(
        ("data set", f"constant {AT_SIZE}: drafted/step", "tokens/step", "adaptive", "learned"),
        [_row(name, measured["by_limit"][name]["constant"][str(AT_SIZE)], compared[name]) for name in SETS],
    )
    yield _difference(compared)


def _row(name: str, constant: Mapping[str, float], gained: Mapping[str, float | None]) -> list[str]:
    cells = ["not reached" if gain is None else f"{gain:+.0%}" for gain in gained.values()]
    return [LABELS[name], f"{constant['drafted_per_step']:.2f}", f"{constant['tokens_per_step']:.2f}", *cells]


def _difference(compared: Mapping[str, Mapping[str, float | None]]) -> str:
    reached = {
        limit: [gain for one in compared.values() if (gain := one[limit]) is not None]
        for limit in ("adaptive", "learned")
    }
    better = sum(gain > 0 for gain in reached["adaptive"])
    means = {limit: fmean(gains) if gains else 0.0 for limit, gains in reached.items()}
    return (
        f"**The difference.** The limit that follows the match is better than the constant one on {better} "
        f"of {len(reached['adaptive'])} data sets, by {means['adaptive']:+.0%} in the mean; the learned rule "
        f"by {means['learned']:+.0%}. The match length is a measure of certainty. It is a weaker one where "
        "responses are short, as in RSL-SQL: after a long match there is little left to accept, and a short "
        "match that many outputs agree on may be followed far. An estimate of each token's probability uses "
        "both."
    )


SECTION = Section("fig2", "Figure 2: match length and the limit on drafts", _runs, _figures, _plots, _text)
