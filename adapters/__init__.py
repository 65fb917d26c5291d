"""Adapters that tag an agent framework's calls with their stage. Imported as ``agentspec.adapters``."""
