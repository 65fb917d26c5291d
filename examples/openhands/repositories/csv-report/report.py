"""Sums by group."""

from table import render


def rows(text: str) -> list[dict[str, str]]:
    """The lines below the heading, by the names in it."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    names = lines[0].split(",")
    return [dict(zip(names, line.split(","))) for line in lines[1:]]


def sums(records: list[dict[str, str]], group: str, amount: str) -> dict[str, float]:
    """The amounts of each group, the largest first; groups with the same sum by name."""
    totals: dict[str, float] = {}
    for record in records:
        totals[record[group]] = float(record[amount])
    return dict(sorted(totals.items(), key=lambda item: (-item[1], item[0])))


def report(text: str, group: str, amount: str) -> str:
    """The sums as a table."""
    return render(sums(rows(text), group, amount))
