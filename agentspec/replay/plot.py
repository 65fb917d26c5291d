"""Plot of a replay's counts: one row of panels for each file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.patches import Patch

from agentspec.draft import Source
from agentspec.replay.jobs import ByMethod
from agentspec.replay.tally import MATCH_LABELS, Kind, Tally, accepted_shares, total
from agentspec.reporting import plots

SOURCES = {
    Source.REQUEST: "#1f5fb4",
    Source.SESSION: "#7db3e8",
    Source.STAGE: "#e07b00",
    Source.WORKFLOW: "#f2c14e",
    Source.TENANT: "#8c8c8c",
}
_SHADES = [
    to_hex(colormaps["GnBu"](0.2 + 0.8 * i / len(MATCH_LABELS))) for i in range(1, 1 + len(MATCH_LABELS))
]
MATCHES = dict(zip(MATCH_LABELS, _SHADES, strict=True))  # from light to dark


def plot(results: Mapping[str, ByMethod], path: Path) -> None:
    """Plot each method's tokens per step, drafted and accepted tokens, and accepted tokens by origin."""
    num_methods = max(map(len, results.values()))
    figure, axes = plots.panels(4, len(results), height=max(2.6, 1.1 + 0.22 * num_methods))
    for row, (name, by_method) in enumerate(results.items()):
        tallies = {method: total(by_stage.values()) for method, by_stage in by_method.items()}
        bars, scatter, sources, matches = axes[4 * row : 4 * row + 4]
        _draw_speeds(bars, tallies)
        bars.set_title(name, loc="left", fontweight="bold")
        _draw_drafts(scatter, tallies)
        _draw_shares(sources, [accepted_shares(one.by_source) for one in tallies.values()], SOURCES)
        sources.set_xlabel("accepted draft tokens by tree")
        _draw_shares(matches, [accepted_shares(one.by_match) for one in tallies.values()], MATCHES)
        matches.set_xlabel("accepted draft tokens by match length")
    _explain(axes[-2:])
    plots.save(figure, path)


def _explain(panels: Sequence[Axes]) -> None:
    """Add legends for the colours of the shares below the last row."""
    by_tree = {source.name.lower(): colour for source, colour in SOURCES.items()}
    by_match = {label: MATCHES[size] for size, label in MATCH_LABELS.items()}
    for axes, colours in zip(panels, (by_tree, by_match), strict=True):
        handles = [Patch(color=colour, label=label) for label, colour in colours.items()]
        axes.legend(
            handles=handles,
            loc="upper center",
            bbox_to_anchor=(0.5, -0.28),
            ncols=4,
            fontsize=7.5,
            frameon=False,
            handlelength=1,
        )


def _draw_speeds(axes: Axes, tallies: Mapping[str, Tally]) -> None:
    for row, (method, tally) in enumerate(tallies.items()):
        axes.barh(row, tally.tokens_per_step, color=plots.colour(method), height=0.7)
        axes.text(tally.tokens_per_step, row, f" {tally.tokens_per_step:.2f}", va="center", fontsize=7.5)
    axes.set_yticks(range(len(tallies)), list(tallies))
    axes.invert_yaxis()
    axes.margins(x=0.15)
    axes.set_xlabel("tokens per step")


def _draw_drafts(axes: Axes, tallies: Mapping[str, Tally]) -> None:
    for method, tally in tallies.items():
        axes.plot(tally.drafted_per_step, tally.accepted_per_step, "o", ms=6, color=plots.colour(method))
    axes.set(xlim=(0, None), ylim=(0, None))
    axes.set(xlabel="draft tokens per step", ylabel="accepted draft tokens per step")


def _draw_shares(axes: Axes, shares: Sequence[Mapping[Kind, float]], colours: Mapping[Kind, str]) -> None:
    """Draw a bar of 100 % for each method, in the order of the first panel."""
    for row, one in enumerate(shares):
        begin = 0.0
        for kind, colour in colours.items():
            axes.barh(row, one.get(kind, 0.0), left=begin, color=colour, height=0.7)
            begin += one.get(kind, 0.0)
    axes.set_yticks(range(len(shares)), [])
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    axes.xaxis.set_major_formatter("{x:.0%}")
