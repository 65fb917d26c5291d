"""A section of the document: its runs, and its figures, plots and text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from lab.paper.runs import Outcomes, Run
from lab.paper.samples import Traces

Figures = dict[str, Any]  # as in JSON


@dataclass(frozen=True, slots=True)
class Section:
    """One figure or table of the paper.

    Attributes:
        name: name for ``--only`` and in the figures' file.
        runs: returns all runs that it needs.
        figures: returns the figures from the outcomes; text and plots use only these.
        plots: returns plots by file name, without the extension.
        text: yields Markdown blocks; a plot's place is ``![title](NAME)``.
    """

    name: str
    title: str
    runs: Callable[[Traces], Sequence[Run]]
    figures: Callable[[Traces, Outcomes], Figures]
    plots: Callable[[Figures], dict[str, Figure]]
    text: Callable[[Figures], Iterator[str]]
