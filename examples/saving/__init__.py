"""Shared code of the examples: a local server, timed calls, and the savings by drafting."""
