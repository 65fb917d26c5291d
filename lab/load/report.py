"""The results of all rounds: medians, and the learned price against every fixed price."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean, median
from typing import Any

from rich.table import Table

from lab.load.measure import Served
from lab.load.variants import AUTO, FIXED, OFF, VARIANTS

MOST_BELOW_BEST = 0.03
RATE = "tokens_per_cpu_s"

Rounds = Mapping[int, Sequence[Served]]  # by number of live requests
Rates = dict[str, dict[int, float]]  # variant -> live requests -> output tokens per second of CPU time


def rates(rounds: Rounds) -> Rates:
    """Return tokens per second of CPU time, corrected for differences between rounds.

    Each round is divided by the mean of its variants. The median over rounds is multiplied by the median of
    those means.
    """
    result: Rates = {name: {} for name in VARIANTS}
    for num_clients, served in rounds.items():
        means = [mean(one[RATE] for one in by_name.values()) for by_name in served]
        for name in VARIANTS:
            relative = [by_name[name][RATE] / level for by_name, level in zip(served, means, strict=True)]
            result[name][num_clients] = median(relative) * median(means)
    return result


def summary(rounds: Rounds) -> dict[str, Any]:
    """Return three ratios for each variant with a learned price; each ratio has a bar."""
    by_name = rates(rounds)
    best = {clients: max(by_name[name][clients] for name in FIXED) for clients in rounds}
    best_mean = max(mean(by_name[name].values()) for name in FIXED)
    identical = [one["outputs_identical"] for served in rounds.values() for x in served for one in x.values()]
    return {
        "outputs_identical": all(identical),
        **{
            name.replace(" ", "_"): {
                "least_against_best_fixed": min(by_name[name][n] / best[n] for n in rounds),
                "least_against_off": min(by_name[name][n] / by_name[OFF][n] for n in rounds),
                "mean_against_best_fixed": mean(by_name[name].values()) / best_mean,
            }
            for name in AUTO
        },
    }


def passes(figures: Mapping[str, float]) -> bool:
    """True if a variant's figures of :func:`summary` meet the bars."""
    return (
        figures["least_against_best_fixed"] >= 1 - MOST_BELOW_BEST
        and figures["least_against_off"] >= 1
        and figures["mean_against_best_fixed"] > 1
    )


def figures(rounds: Rounds) -> dict[str, dict[str, dict[str, Any]]]:
    """Return, by variant and live requests, the rate, medians of the other figures, and each round's rate."""
    by_name = rates(rounds)
    return {
        name: {
            str(num_clients): {
                **_medians([one[name] for one in served]),
                RATE: by_name[name][num_clients],
                "rounds": [one[name][RATE] for one in served],
            }
            for num_clients, served in rounds.items()
        }
        for name in VARIANTS
    }


def _medians(served: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    numbers = [name for name, value in served[0].items() if isinstance(value, float)]
    return {
        **{name: median(one[name] for one in served) for name in numbers},
        "outputs_identical": all(one["outputs_identical"] for one in served),
    }


def table(rounds: Rounds) -> Table:
    """Return a row per variant: its rates, their mean, and its drafts and prices at least and most load."""
    by_name, all_figures = rates(rounds), figures(rounds)
    first, *_, last = (str(n) for n in (*rounds, *rounds))
    result = Table(title="output tokens per second of CPU", title_justify="left")
    result.add_column("requests at a time", no_wrap=True)
    for heading in (*map(str, rounds), "mean", "tokens/step", "drafted/step", "price"):
        result.add_column(heading, justify="right", no_wrap=True)
    for name in VARIANTS:
        ends = (all_figures[name][first], all_figures[name][last])
        result.add_row(
            name,
            *(f"{by_name[name][num_clients]:.0f}" for num_clients in rounds),
            f"{mean(by_name[name].values()):.0f}",
            *(
                " - ".join(f"{one[figure]:.2f}" for one in ends)
                for figure in ("tokens_per_step", "drafted_per_step", "price")
            ),
        )
    return result


def notes(rounds: Rounds) -> list[str]:
    """Return the bars in words."""
    summed = summary(rounds)
    lines = [f"outputs identical: {'yes' if summed['outputs_identical'] else 'NO'}"]
    for name in AUTO:
        one = summed[name.replace(" ", "_")]
        lines.append(
            f"{name}: at worst {one['least_against_best_fixed']:.3f} of the best fixed price"
            f" (bar {1 - MOST_BELOW_BEST}) and {one['least_against_off']:.2f} of none (bar 1),"
            f" on the mean {one['mean_against_best_fixed']:.3f} of the best fixed price (bar 1):"
            f" {'pass' if passes(one) else 'FAIL'}"
        )
    return lines
