"""Benchmarks in parts: each part's figures join one JSON file, and are compared with bars."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import ge, le, lt
from pathlib import Path
from typing import Any

from rich.table import Table

from agentspec.errors import ConfigError
from agentspec.reporting.provenance import provenance
from agentspec.reporting.report import Announce, Outputs, announcer, print_report, rounded, verdict

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


@dataclass(frozen=True, slots=True)
class Scorecard:
    """The report on all parts of a benchmark.

    Attributes:
        benchmark: its name on the command line.
        summary: returns the figures that people compare; None for those that were not measured.
    """

    benchmark: str
    title: str
    bars: Sequence[Bar]
    summary: Callable[[Parts], dict[str, Any]]

    def run(
        self,
        names: Iterable[str],
        measure: Callable[[str, Announce], Mapping[str, Any]],
        origin: Callable[[], Mapping[str, object]],
        outputs: Outputs,
        plot: Callable[[Parts, Path], None] | None = None,
    ) -> int:
        """Measure the named parts, print a table with a row per bar, then the JSON; return the exit status.

        Parts in the JSON file that are not measured now stay unchanged. The file is written after each part:
        a failure costs one. Each part states where it was measured.

        Raises:
            ConfigError: the file does not belong to this benchmark, the plot's format is not supported, or a
                file can't be written.
        """
        outputs.check()
        parts = self._parts_in(outputs.json)
        announce, facts = announcer(), provenance()  # before our own load, and before the file is changed
        for name in names:
            parts[name] = {**measure(name, announce), "provenance": {**facts, **origin()}}
            with outputs.writing():
                if outputs.json:
                    outputs.json.write_text(self.json_line(parts) + "\n")
        announce("done")
        if outputs.plot and plot:
            with outputs.writing():
                plot(parts, outputs.plot)
        print_report(self.table(parts), self.json_line(parts))
        return 0

    def json_line(self, parts: Parts) -> str:
        """Return all figures as JSON."""
        return json.dumps({"summary": rounded(self.summary(parts)), "parts": rounded(parts)})

    def table(self, parts: Parts) -> Table:
        """Return a table with one row per bar."""
        result = Table(title=self.title, title_justify="left")
        for heading in ("", "measured", "bar", ""):
            result.add_column(heading, justify="left" if not heading else "right", no_wrap=True)
        for bar in self.bars:
            value = bar.value(parts)
            shown = "" if value is None else f"{rounded(value)}"
            result.add_row(bar.label, shown, f"{SIGNS[bar.meets]} {bar.limit:g}", verdict(bar.passes(parts)))
        return result

    def _parts_in(self, path: Path | None) -> dict[str, Any]:
        if path is None or not path.exists():
            return {}
        try:
            found: dict[str, Any] = json.loads(path.read_text())["parts"]
        except (ValueError, KeyError, TypeError):
            raise ConfigError(
                f"{str(path)!r} was not written by the benchmark {self.benchmark!r}: name another file"
            ) from None
        return found
