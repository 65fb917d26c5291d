"""``python -m lab prior``: learn from all sets, and measure each with the prior of the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from operator import ge, le
from pathlib import Path
from typing import Any

from agentspec.reporting.report import Outputs, announcer
from benchmarks.harness.scorecard import Bar, Parts, Scorecard
from benchmarks.harness.traces import files
from lab.prior.measure import COLD, learn_all, measure, shipped, strangers
from lab.prior.sizes import Sizes
from lab.prior.source import source_of

_GAIN, _RATIO = "accepted_gain_equal_drafts", "draft_ratio_equal_tokens"

BARS = (
    *(
        bar
        for half in ("first", "second")
        for bar in (
            Bar(f"{half} half: accepted tokens at equal drafts, gain, mean", half, f"{_GAIN}_mean", ge, 0.18),
            Bar("  least", half, f"{_GAIN}_min", ge, 0.06),
            Bar("  drafts for equal tokens, ratio, mean", half, f"{_RATIO}_mean", le, 0.42),
            Bar("  calibration error, largest", half, "ece_max", le, 0.05),
            Bar("  loss to an unrelated stage, largest", half, "distractor_loss_max", le, 0.01),
        )
    ),
    Bar("30 calls: drafts for equal tokens, ratio, mean", COLD, f"{_RATIO}_mean", le, 0.55),
    Bar("  calibration error, mean", COLD, "ece_mean", le, 0.05),
    Bar("  loss to an unrelated stage, mean", COLD, "distractor_loss_mean", le, 0.01),
)


def summary(parts: Parts) -> dict[str, Any]:
    """Return the figures that people compare; None if a part was not measured."""
    return {f"{bar.part}_{bar.figure}": bar.value(parts) for bar in BARS}


CARD = Scorecard("prior", "the learned rule, with the prior of other workflows' sets", BARS, summary)


def run(names: Sequence[str], traces: Path, sizes: Sizes, source: Path | None, outputs: Outputs) -> int:
    """Measure, print the report, and return the exit status.

    Args:
        source: where to write the prior of all sets, as C++; None = nowhere.

    Raises:
        ConfigError: a file can't be written, or the folder has no recorded calls.
    """
    outputs.check()
    Outputs(json=source).check()
    paths = files(traces)
    for path in paths:
        strangers(path, paths)
    learned = learn_all(paths, sizes, announcer())
    if source:
        source.write_text(source_of(shipped(learned)))
    origin = {"sizes": asdict(sizes), "sets": [path.name for path in paths]}
    return CARD.run(
        names, lambda name, announce: measure(name, learned, sizes, announce), lambda: origin, outputs
    )
