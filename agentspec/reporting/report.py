"""Reports of benchmarks and replays: progress on stderr, a table, and a last line of JSON."""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from agentspec.errors import ConfigError
from agentspec.reporting.provenance import provenance

COLUMNS = 110
LEAST_COLUMNS, MOST_COLUMNS = 80, 120  # of a table that fits the terminal

Announce = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outputs:
    """Files for a report in addition to the printed output; None: not written."""

    json: Path | None = None
    markdown: Path | None = None
    plot: Path | None = None

    def check(self, inputs: Sequence[Path] = ()) -> None:
        """Check the names before a long measurement; create nothing. Only a plot needs matplotlib.

        Args:
            inputs: files that are read.

        Raises:
            ConfigError: the plot's format is not supported, or a name can't be that of a file, is that of an
                input, or occurs twice.
        """
        if self.plot:
            from agentspec.reporting import plots

            plots.check(self.plot)
        taken = {path.resolve(): "it is an input" for path in inputs}
        for path in self._paths:
            if (use := taken.get(path.resolve())) is not None:
                raise ConfigError(f"{str(path)!r} can't be written: {use}")
            taken[path.resolve()] = "two outputs have this name"
            if path.is_dir():
                raise ConfigError(f"{str(path)!r} is a folder: name a file")
            folder = next(parent for parent in path.absolute().parents if parent.exists())
            if not folder.is_dir():
                raise ConfigError(f"there can't be a file {str(path)!r}: {str(folder)!r} is no folder")
            if not _is_writable(path, folder):
                raise ConfigError(f"{str(path)!r} can't be written: name another file, or change its rights")

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Create the folders of the files, which are to be written within.

        Raises:
            ConfigError: a file can't be written, e.g. since the disk is full.
        """
        try:
            for path in self._paths:
                path.parent.mkdir(parents=True, exist_ok=True)
            yield
        except OSError as error:
            name = error.filename or ", ".join(map(str, self._paths))
            raise ConfigError(f"{str(name)!r} can't be written: {error.strerror or error}") from error

    @property
    def _paths(self) -> Iterator[Path]:
        return filter(None, (self.json, self.markdown, self.plot))


def _is_writable(path: Path, folder: Path) -> bool:
    """Try to write, since permissions don't reveal a read-only file system."""
    try:
        if path.exists():
            with path.open("ab"):
                return True
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Results of one run.

    Attributes:
        figures: the JSON line, without provenance.
        table: the printed table.
        origin: provenance of the figures, in addition to :func:`provenance`.
        notes: lines below the table.
        plot: draws the plot into a file.
        markdown: returns the report as markdown.
        is_failure: true if the command exits with status 1.
        is_for_terminals: the table fits the terminal, and the JSON line is only in its file.
    """

    figures: Mapping[str, Any]
    table: Table
    origin: Mapping[str, object]
    notes: Sequence[str] = ()
    plot: Callable[[Path], None] | None = None
    markdown: Callable[[], str] | None = None
    is_failure: bool = False
    is_for_terminals: bool = False

    def publish(self, outputs: Outputs) -> int:
        """Write the files, print the table, the notes and perhaps the JSON; return the exit status.

        Raises:
            ConfigError: a file can't be written. The rest is printed all the same.
        """
        line = json_line(self.figures, {**provenance(), **self.origin})
        try:
            self._write(line, outputs)
        finally:
            if self.is_for_terminals:
                print_report(self.table, None, self.notes, _terminal_columns())
            else:
                print_report(self.table, line, self.notes)
        return int(self.is_failure)

    def _write(self, line: str, outputs: Outputs) -> None:
        with outputs.writing():
            if outputs.json:
                outputs.json.write_text(line + "\n")
            if outputs.markdown and self.markdown:
                outputs.markdown.write_text(self.markdown(), encoding="utf-8")
            if outputs.plot and self.plot:
                self.plot(outputs.plot)


def run(measure: Callable[[Announce], Report], outputs: Outputs) -> int:
    """Measure with progress on stderr, publish the report, and return the exit status.

    Raises:
        ConfigError: a file of ``outputs`` can't be written.
    """
    outputs.check()
    announce = announcer()
    report = measure(announce)
    announce("done")
    return report.publish(outputs)


def announcer() -> Announce:
    """Return a function that prints progress and elapsed seconds on stderr."""
    console, begin_s = Console(stderr=True), time.monotonic()
    return lambda what: console.print(f"{time.monotonic() - begin_s:5.1f} s  {what}", highlight=False)


def print_report(table: Table, line: str | None, notes: Sequence[str] = (), columns: int = COLUMNS) -> None:
    """Print the table, the notes below it, then the JSON line if there is one."""
    Console(width=columns).print(table)
    print(*notes, sep="\n", end="\n" if notes else "")
    print(line or "", end="\n" if line else "", flush=True)


def _terminal_columns() -> int:
    columns = shutil.get_terminal_size((COLUMNS, 24)).columns
    return min(max(columns, LEAST_COLUMNS), MOST_COLUMNS)


def json_line(measured: Mapping[str, Any], provenance: Mapping[str, object]) -> str:
    """Return the measurements and their provenance as JSON, with numbers to four significant digits."""
    return json.dumps({**rounded(measured), "provenance": provenance})


def rounded(value: Any) -> Any:
    """Return the value with floats to four significant digits, including those in mappings and lists."""
    if isinstance(value, Mapping):
        return {name: rounded(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(one) for one in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


def verdict(passes: bool | None) -> str:
    """Return a table's cell that shows if a bar is met."""
    return {True: "[green]pass[/green]", False: "[red]FAIL[/red]", None: ""}[passes]
