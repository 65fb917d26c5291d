"""The forest: all suffix trees of one engine, by stage, session and request."""

from __future__ import annotations

from agentspec._native import RUN_ROW_STEP, EndedRow, LiveRows, RowCounts, RowStep, known_tokens
from agentspec.forest.forest import Forest, ForestStats, Tokens

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
