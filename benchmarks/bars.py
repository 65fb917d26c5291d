"""Figures compared with bars, and one JSON file to which a benchmark adds its parts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import ge, le, lt
from pathlib import Path
from typing import Any

from rich.table import Table

from agentspec.errors import ConfigError
from agentspec.reporting.report import rounded, verdict

Parts = Mapping[str, Mapping[str, Any]]  # figures and provenance, by name of the part

SIGNS = {ge: "at least", le: "at most", lt: "under"}


@dataclass(frozen=True, slots=True)
class Bar:
    """A figure of a part, and the limit that is good enough.

    Attributes:
        meets: compares the figure with the limit.
        is_summed: true if the summary includes the figure.
    """

    label: str
    part: str
    figure: str
    meets: Any
    limit: float
    is_summed: bool = True

    def value(self, parts: Parts) -> Any:
        """Return the figure; None if it was not measured."""
        return parts.get(self.part, {}).get(self.figure)

    def passes(self, parts: Parts) -> bool | None:
        """Return True if the figure meets the bar; None if it was not measured."""
        value = self.value(parts)
        return None if value is None else bool(self.meets(value, self.limit))


def table(title: str, bars: Sequence[Bar], parts: Parts) -> Table:
    """Return a table with one row per bar."""
    result = Table(title=title, title_justify="left")
    for heading in ("", "measured", "bar", ""):
        result.add_column(heading, justify="left" if not heading else "right", no_wrap=True)
    for bar in bars:
        value = bar.value(parts)
        shown = "" if value is None else f"{rounded(value)}"
        result.add_row(bar.label, shown, f"{SIGNS[bar.meets]} {bar.limit:g}", verdict(bar.passes(parts)))
    return result


def parts_in(path: Path | None, benchmark: str) -> dict[str, Any]:
    """Return the parts measured earlier; empty if there is no file.

    Raises:
        ConfigError: the file does not belong to this benchmark.
    """
    if path is None or not path.exists():
        return {}
    try:
        found: dict[str, Any] = json.loads(path.read_text())["parts"]
    except (ValueError, KeyError, TypeError):
        raise ConfigError(f"{str(path)!r} was not written by bench {benchmark}: name another file") from None
    return found
