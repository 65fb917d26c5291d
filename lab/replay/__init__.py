"""Drafting methods of other projects, as drafters of ``agentspec.replay``, and what only comparisons need."""
