"""Sizes, ages and names as text for a terminal of 80 columns."""

from __future__ import annotations

from collections.abc import Sequence

COLUMNS = 80
_KIB, _MIB, _GIB = 1 << 10, 1 << 20, 1 << 30
_ADAPTER = "\N{SYMBOL FOR UNIT SEPARATOR}"  # between tenant and adapter


def size(num_bytes: float) -> str:
    """Return a number of bytes, like ``12.3 MiB``."""
    for unit, name in ((_GIB, "GiB"), (_MIB, "MiB"), (_KIB, "KiB")):
        if num_bytes >= unit:
            return f"{num_bytes / unit:.1f} {name}"
    return f"{num_bytes:.0f} B"


def duration(seconds: float) -> str:
    """Return a time in its largest unit, like ``3 h``."""
    for unit, name in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= unit:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds:.0f} s"


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def cut(text: str, width: int) -> str:
    """Return the text, without its middle if it is too long."""
    if len(text) <= width:
        return text
    begin = (width - 1) // 2
    return f"{text[:begin]}…{text[begin + 1 - width :]}"


def owner(tenant: str) -> str:
    """Return a scope's tenant, with its adapter if it has one."""
    return tenant.replace(_ADAPTER, " + ")


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return rows under their columns' names, in 80 columns: the first one is cut to fit."""
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    widths[0] = min(widths[0], COLUMNS - sum(width + 2 for width in widths[1:]))
    lines = []
    for first, *others in (columns, *rows):
        figures = (cell.rjust(width + 2) for cell, width in zip(others, widths[1:], strict=True))
        lines.append(cut(first, widths[0]).ljust(widths[0]) + "".join(figures))
    return "\n".join(lines)
