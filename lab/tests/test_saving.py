"""``python -m lab saving``: the figures and the table. Nothing is timed here."""

from __future__ import annotations

from io import StringIO
from typing import Any

from rich.console import Console

from lab.saving.run import Compared, table


def block(decode_s: float, known_s: float = 0.0, saved_s: float | None = None) -> dict[str, Any]:
    return {"decode_s": decode_s, "measured_decode_s": known_s, "saved_s": saved_s}


def test_the_estimate_stands_beside_the_difference_of_both_decode_times() -> None:
    one = Compared()
    one.add(block(4.0, known_s=3.0, saved_s=5.0), speculate=True)
    one.add(block(10.0, known_s=10.0, saved_s=0.1), speculate=False)  # these calls save nothing
    one.add(block(1.0), speculate=True)  # nothing known
    assert one.figures() == {
        "with_s": 5.0,
        "without_s": 10.0,
        "known_s": 3.0,
        "estimated_s": 5.0,
        "saved_s": 5.0,
        "ratio": 1.0,
    }


def test_the_table_has_all_stages_together_and_no_ratio_where_nothing_was_saved() -> None:
    stages = {"a": Compared(1.0, 3.0, 1.5, 1.0), "b": Compared(5.0, 1.0, -3.0, 5.0)}
    out = StringIO()
    Console(file=out, width=130).print(table({1: stages}))
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in out.getvalue().splitlines()]
    by_stage = {row[1]: row for row in rows if len(row) > 2}
    assert by_stage["a"][-3:] == ["2.00", "1.50", "0.75"]
    assert by_stage["b"][-3:] == ["-4.00", "-3.00", "-"]
    assert by_stage["all"][2:] == ["4.00", "6.00", "6.00", "-2.00", "-1.50", "-"]
