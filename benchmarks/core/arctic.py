"""The peer: Arctic Inference's suffix decoding, called as vLLM's ``method: suffix`` calls it."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Sequence
from importlib.metadata import version

import numpy as np
from arctic_inference.suffix_decoding import SuffixDecodingCache
from arctic_inference.suffix_decoding._C import SuffixTree

from benchmarks.core.sides import DEPTH, FACTOR, MAX_DRAFT, MIN_PROB, Batch, Draft, Tokens

VERSION = version("arctic-inference")


class ArcticIndex:
    """One native suffix tree; documents are numbered in order of arrival."""

    def __init__(self) -> None:
        self._tree = SuffixTree(DEPTH)
        self._sizes = array("i")  # a few bytes per document, since its memory is measured with the tree's
        self._oldest = 0

    def add(self, document: Tokens) -> None:
        """Add a whole document."""
        SuffixTree.extend_ndarray(self._tree, len(self._sizes), document)
        self._sizes.append(len(document))

    def evict(self, num_tokens: int) -> int:
        """Evict the oldest documents, at least ``num_tokens`` tokens or all; return the number evicted."""
        num_gone = 0
        while num_gone < num_tokens and self._oldest < len(self._sizes):
            self._tree.remove(self._oldest)
            num_gone += self._sizes[self._oldest]
            self._oldest += 1
        return num_gone


class ArcticDecoder:
    """The cache of vLLM's proposer: a tree per live prompt, one tree of all outputs, no limit."""

    def __init__(self) -> None:
        self._cache = SuffixDecodingCache(DEPTH, -1)
        self._num_learned = itertools.count()

    def learn(self, output: Tokens) -> None:
        """Add a past output to the tree of outputs."""
        request = f"learned-{next(self._num_learned)}"
        self._cache.start_request(request, np.empty(0, np.int32))
        self._cache.add_active_response(request, output)
        self._cache.stop_request(request)

    def start(self, request: str, prompt: Tokens) -> None:
        """Admit a request and index its prompt."""
        self._cache.start_request(request, prompt)

    def step(self, batch: Batch) -> Sequence[Draft]:
        """Take the accepted tokens, then draft, request by request."""
        cache, drafts = self._cache, []
        for (request, tokens), context in zip(batch.updates, batch.contexts, strict=True):
            cache.add_active_response(request, tokens)
            draft = cache.speculate(
                request,
                context,
                max_spec_tokens=MAX_DRAFT,
                max_spec_factor=FACTOR,
                min_token_prob=MIN_PROB,
            )
            drafts.append(draft)
        return drafts

    def finish(self, request: str) -> None:
        """Forget a request and its output."""
        self._cache.stop_request(request)
        self._cache.evict_cached_response(request)
