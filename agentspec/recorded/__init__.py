"""Recorded model calls: read from a file, looked up by conversation, and replayed as answers."""

from __future__ import annotations

from agentspec.recorded.calls import RecordedAnswer, RecordedCall, read
from agentspec.recorded.library import CallLibrary
from agentspec.recorded.replay_engine import ReplayEngine

__all__ = ["CallLibrary", "RecordedAnswer", "RecordedCall", "ReplayEngine", "read"]
