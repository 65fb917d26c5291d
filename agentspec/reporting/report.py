"""Output of every benchmark: progress on stderr, a table, and a last line of JSON."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

COLUMNS = 110

Announce = Callable[[str], None]


def announcer() -> Announce:
    """Return a function that prints progress and elapsed seconds on stderr."""
    console, begin_s = Console(stderr=True), time.monotonic()
    return lambda what: console.print(f"{time.monotonic() - begin_s:5.1f} s  {what}", highlight=False)


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


def make_room_for(*paths: Path | None) -> None:
    """Create the parent folders of output files."""
    for path in filter(None, paths):
        path.parent.mkdir(parents=True, exist_ok=True)


def publish(table: Table, line: str, json_path: Path | None, notes: Sequence[str] = ()) -> None:
    """Print the table, the notes below it, then the JSON. Also write the JSON to a file if one is given."""
    if json_path:
        json_path.write_text(line + "\n")
    Console(width=COLUMNS).print(table)
    print(*notes, sep="\n", end="\n" if notes else "")
    print(line, flush=True)
