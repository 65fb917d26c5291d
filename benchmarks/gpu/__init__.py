"""vLLM on a GPU: recorded agent calls forced through a model with random weights, by what drafts.

``calls`` prepares recorded calls as token ids. ``pack`` makes the parts for a machine without a package
index, and ``join`` puts them together there.
"""
