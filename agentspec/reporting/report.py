"""What every benchmark leaves behind: progress on stderr, a table, and one line of JSON as the last."""

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
    """Says on stderr what is going on, and since when."""
    console, begin_s = Console(stderr=True), time.monotonic()
    return lambda what: console.print(f"{time.monotonic() - begin_s:5.1f} s  {what}", highlight=False)


def json_line(measured: Mapping[str, Any], provenance: Mapping[str, object]) -> str:
    """What was measured and where, numbers to four significant digits."""
    return json.dumps({**rounded(measured), "provenance": provenance})


def rounded(value: Any) -> Any:
    """Floats to four significant digits, also inside of mappings and lists."""
    if isinstance(value, Mapping):
        return {name: rounded(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(one) for one in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


def verdict(passes: bool | None) -> str:
    """A table's cell: whether a bar is met."""
    return {True: "[green]pass[/green]", False: "[red]FAIL[/red]", None: ""}[passes]


def make_room_for(*paths: Path | None) -> None:
    """Make the folders that files will be written to."""
    for path in filter(None, paths):
        path.parent.mkdir(parents=True, exist_ok=True)


def publish(table: Table, line: str, json_path: Path | None, notes: Sequence[str] = ()) -> None:
    """Print the table, the notes below it, then the JSON, which also goes into a file."""
    if json_path:
        json_path.write_text(line + "\n")
    Console(width=COLUMNS).print(table)
    print(*notes, sep="\n", end="\n" if notes else "")
    print(line, flush=True)
