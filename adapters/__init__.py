"""Adapters that tag an agent framework's calls with their stage. Imported as ``agentspec.adapters``."""

from agentspec.adapters.automatic import auto

__all__ = ["auto"]
