"""The corpus: outputs that engines share, so that what one engine learns, all know.

Tokens travel, trees never. The store is a cache: without it requests lose drafts, never an answer.
"""
