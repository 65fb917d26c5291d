"""The forest: all suffix trees of one engine, by stage, session and request."""

from __future__ import annotations

from agentspec.forest.forest import Forest, ForestStats, LiveRows, RowCounts, Tokens

__all__ = ["Forest", "ForestStats", "LiveRows", "RowCounts", "Tokens"]
