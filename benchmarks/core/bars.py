"""The comparisons and their bars: the rows of the table and the keys of the summary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

Figures = Mapping[str, Mapping[str, Any]]


class Kind(Enum):
    """The kind of a row's result."""

    SPEEDUP = "theirs / ours"
    SHARE = "ours / theirs"
    ALIKE = "ours / theirs, about 1"
    VALUE = "ours"


@dataclass(frozen=True, slots=True)
class Row:
    """One comparison.

    Attributes:
        label: text for the table.
        figure: name among the figures.
        kind: kind of the result.
        bar: minimum of a speed-up, maximum of a share or a value; maximum distance from 1 of ALIKE.
        key: the result's name in the summary.
        side: side of the judged figure.
        against: figure and side to compare with, if not the same figure of the peer.
        against_label: text for it in the table.
    """

    label: str
    figure: str
    kind: Kind = Kind.SPEEDUP
    bar: float | None = None
    key: str | None = None
    side: str = "ours"
    against: tuple[str, str] | None = None
    against_label: str = ""

    def ours(self, figures: Figures) -> float | None:
        """Return the judged figure; None if it was not measured."""
        return _number(figures, self.figure, self.side)

    def theirs(self, figures: Figures) -> float | None:
        """Return the figure to compare with; None if it was not measured."""
        return _number(figures, *(self.against or (self.figure, "peer")))

    def result(self, figures: Figures) -> float | None:
        """Return speed-up, share or value; None if a side was not measured, or the divisor is 0."""
        ours, theirs = self.ours(figures), self.theirs(figures)
        if self.kind is Kind.VALUE:
            return ours
        if ours is None or theirs is None:
            return None
        above, below = (theirs, ours) if self.kind is Kind.SPEEDUP else (ours, theirs)
        return above / below if below else None

    def passes(self, figures: Figures) -> bool | None:
        """Return True if the bar is met; None without a bar or a result."""
        result = self.result(figures)
        if self.bar is None or result is None:
            return None
        if self.kind is Kind.ALIKE:
            return abs(result - 1) <= self.bar
        return result >= self.bar if self.kind is Kind.SPEEDUP else result <= self.bar


def _number(figures: Figures, figure: str, side: str) -> float | None:
    value = figures.get(figure, {}).get(side)
    return value["median"] if isinstance(value, Mapping) else value


def _left(label: str, state: str, bar: float | None) -> Row:
    """Return the share of the mixed corpus's memory that removal does not return."""
    full = ("bytes_per_token_mixed", "ours")
    return Row(label, f"{full[0]}_{state}", Kind.SHARE, bar, against=full, against_label="full")


def _drafts(batch_size: int) -> list[Row]:
    """Check that both sides did the same work, but for ties and the peer's contexts of at most 63 tokens."""
    drafted = f"drafted_per_request_b{batch_size}"
    is_large, is_largest = batch_size in (64, 256), batch_size == 256
    rows = [
        Row(
            "  tokens drafted per request",
            drafted,
            Kind.ALIKE,
            bar=0.1 if is_large else None,
            key=f"drafted_ratio_b{batch_size}" if is_large else None,
        ),
        Row(
            "  of them the same as the peer's",
            f"agreed_per_request_b{batch_size}",
            Kind.ALIKE,
            bar=0.1 if is_large else None,
            key=f"agreement_b{batch_size}" if is_large else None,
            against=(drafted, "peer"),
        ),
    ]
    if is_large:
        rows.append(
            Row(
                "  tokens drafted by the learned rule",
                drafted,
                Kind.ALIKE,
                bar=0.2,
                key=f"learned_drafted_ratio_b{batch_size}",
                side="ours_learned",
            )
        )
    if is_largest:
        rows.append(
            Row(
                "  tokens drafted on 2 threads",
                drafted,
                Kind.ALIKE,
                bar=0.01,
                key=f"threads2_drafted_ratio_b{batch_size}",
                side="ours_2_threads",
                against=(drafted, "ours_1_thread"),
                against_label="1 thread",
            )
        )
    return rows


def _step(batch_size: int) -> list[Row]:
    figure = f"step_ms_b{batch_size}"
    is_large, is_largest = batch_size in (64, 256), batch_size == 256
    return [
        Row(
            f"decode step, B = {batch_size}, ms",
            figure,
            bar=10 if is_large else None,
            key=f"step_speedup_b{batch_size}" if is_large else None,
        ),
        Row(
            "  on 2 threads",
            figure,
            bar=1.6 if is_largest else None,
            key=f"threads2_speedup_b{batch_size}" if is_largest else None,
            side="ours_2_threads",
            against=(figure, "ours_1_thread"),
            against_label="1 thread",
        ),
        Row("  with every source", figure, side="ours_every_source"),
        Row(
            "  by the learned rule",
            figure,
            bar=10 if is_large else None,
            key=f"learned_speedup_b{batch_size}" if is_large else None,
            side="ours_learned",
        ),
        *_drafts(batch_size),
    ]


def _ingest(size: str) -> list[Row]:
    in_step = f"ingest_in_step_ms_{size}"
    bar, key = (1.0, in_step) if size == "32k" else (None, None)
    return [
        Row(f"prompt of {size} tokens, ms", f"ingest_ms_{size}"),
        Row("  within a decode step", in_step, Kind.VALUE, bar, key),
    ]


ROWS: tuple[Row, ...] = (
    Row("append, ns/token", "append_ns_per_token", bar=6, key="append_speedup"),
    Row("removal, ns/token", "removal_ns_per_token", bar=1, key="removal_speedup"),
    Row("memory, mixed corpus, B/token", "bytes_per_token_mixed", Kind.SHARE, 1 / 6, "memory_ratio_mixed"),
    _left("  left when half is removed", "half", None),
    _left("  left when all is removed", "empty", 1 / 5),
    Row(
        "memory, repeated corpus, B/token",
        "bytes_per_token_repeated",
        Kind.SHARE,
        1 / 8,
        "memory_ratio_repeated",
    ),
    *(row for batch_size in (1, 16, 64, 256) for row in _step(batch_size)),
    *(row for size in ("2k", "8k", "32k") for row in _ingest(size)),
    Row(
        "live request, B/prompt token",
        "request_bytes_per_prompt_token",
        Kind.SHARE,
        1 / 5,
        "request_memory_ratio",
    ),
)


def summary(figures: Figures) -> dict[str, float | None]:
    """Return the results that have a key; None where a side is missing."""
    return {row.key: row.result(figures) for row in ROWS if row.key}
