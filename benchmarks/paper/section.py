"""A part of the document: what is run for it, and what is made of that."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from benchmarks.paper.runs import Outcomes, Run
from benchmarks.paper.samples import Traces

Figures = dict[str, Any]  # as JSON has them


@dataclass(frozen=True, slots=True)
class Section:
    """One figure or table of the paper.

    Attributes:
        name: as ``--only`` and the figures' file have it.
        runs: everything that has to be run.
        figures: what came of it; all that text and plots are made from.
        plots: by file name, without the ending.
        text: Markdown blocks; a plot's place is ``![title](NAME)``.
    """

    name: str
    title: str
    runs: Callable[[Traces], Sequence[Run]]
    figures: Callable[[Traces, Outcomes], Figures]
    plots: Callable[[Figures], dict[str, Figure]]
    text: Callable[[Figures], Iterator[str]]
