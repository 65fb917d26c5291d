"""The corpus: a shared log of outputs, so that each engine learns from the outputs of all engines.

Engines exchange the tokens of outputs, never trees. Without the store an engine drafts from its own outputs.
"""
