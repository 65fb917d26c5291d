"""Sums by group."""

from table import render


def rows(text: str) -> list[dict[str, str]]:
    """Return the lines below the header as dicts, with the header's names as keys."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    names = lines[0].split(",")
    return [dict(zip(names, line.split(","))) for line in lines[1:]]


def sums(records: list[dict[str, str]], group: str, amount: str) -> dict[str, float]:
    """Return the sum of each group, largest first; groups with the same sum by name."""
    totals: dict[str, float] = {}
    for record in records:
        totals[record[group]] = float(record[amount])
    return dict(sorted(totals.items(), key=lambda item: (-item[1], item[0])))


def report(text: str, group: str, amount: str) -> str:
    """Return the sums as a table."""
    return render(sums(rows(text), group, amount))
