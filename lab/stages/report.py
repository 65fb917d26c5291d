"""Tables and notes of the stage benchmark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from lab.stages import growth

LEAST_ARI = 0.95
BAR = "agentic_sql"


def table(figures: Mapping[str, Any]) -> Table:
    """Return a table with a row per data set."""
    table = Table(title="Stages found in calls without tags", title_justify="left")
    table.add_column("data", no_wrap=True)
    for name in ("calls", "stages", "found", "ARI", "again", "served", "us"):
        table.add_column(name, justify="right")
    for name in ("Drain3", "ARI", "us"):
        table.add_column(name, justify="right")
    for name, one in figures["by_data"].items():
        ours, peer = one["ours"], one.get("drain3")
        table.add_row(
            name,
            str(one["num_calls"]),
            str(one["num_stages"]),
            str(ours["num_found"]),
            _ari(ours["ari"]),
            _ari(ours["ari_of_another_order"]),
            f"{ours['share_served_as_found']:.0%}",
            f"{ours['microseconds']:.0f}",
            *(
                (str(peer["num_found"]), _ari(peer["ari"]), f"{peer['microseconds']:.0f}")
                if peer
                else ("-",) * 3
            ),
        )
    return table


def _growth(figures: Mapping[str, Any]) -> str:
    ari = ", ".join(f"{value:.3f} at {at}" for at, value in figures["ari"].items())
    same = f"{min(figures['num_same_names'])} of {min(figures['num_roles'])} names after a restart"
    verdict = "pass" if growth.passes(dict(figures)) else "FAIL"
    return f"{ari}; falls by {figures['fall']:.3f}; stages {figures['num_stages']}; {same}: {verdict}"


def notes(figures: Mapping[str, Any]) -> list[str]:
    """Return the lines below the table."""
    ari = figures["by_data"][BAR]["ours"]["ari"]
    hot = [
        f"{size}: " + ", ".join(f"{name} {microseconds:.0f}" for name, microseconds in by_way.items())
        for size, by_way in figures["microseconds"].items()
    ]
    return [
        "found: groups; again: the index of two orders of arrival; served: calls sent to their group at once",
        "us: microseconds of CPU for a prompt that is new; Drain3: its groups, behind our masking",
        f"{BAR} at least {LEAST_ARI}: {'pass' if ari >= LEAST_ARI else 'FAIL'}",
        "growing workflows, least index as served of their held-back variants, by calls:",
        *(f"  {kind}: {_growth(one)}" for kind, one in figures["by_kind"].items()),
        f"microseconds a request, by its system prompt: {'; '.join(hot)}",
    ]


def _ari(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
