"""Adapters that tag the calls of agent frameworks with their stage. Imported as ``agentspec.adapters``."""

from agentspec.adapters.automatic import auto

__all__ = ["auto"]
