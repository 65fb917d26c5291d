"""The forest: all suffix trees of one engine, by stage, session and request."""

from __future__ import annotations

from agentspec.forest.forest import (
    RUN_ROW_STEP,
    EndedRow,
    Forest,
    ForestStats,
    LiveRows,
    RowCounts,
    RowStep,
    Tokens,
    known_tokens,
)

__all__ = [
    "RUN_ROW_STEP",
    "EndedRow",
    "Forest",
    "ForestStats",
    "LiveRows",
    "RowCounts",
    "RowStep",
    "Tokens",
    "known_tokens",
]
