"""The OpenAI-compatible gateway. Imported as ``agentspec.gateway``."""
