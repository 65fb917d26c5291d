"""Peer drafter: arctic-inference's suffix cache, with one tree per live call and one of all outputs."""

from __future__ import annotations

import itertools

import numpy as np

from agentspec.draft import Draft, Source
from agentspec.errors import ConfigError
from agentspec.forest import Tokens
from agentspec.replay.calls import Call

try:
    from arctic_inference.suffix_decoding import SuffixDecodingCache
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "arctic_inference":
        raise
    raise ConfigError("method 'arctic' is not installed: `make bench-peer` builds it into .venv") from None

DEPTH = 64


class ArcticDrafter:
    """A drafter that calls the cache in the same way as vLLM's proposer."""

    def __init__(self, is_tree: bool, num_draft: int, alpha: float, min_prob: float) -> None:
        self._cache = SuffixDecodingCache(DEPTH, -1)
        self._rule = {
            "max_spec_tokens": num_draft,
            "max_spec_factor": alpha,
            "min_token_prob": min_prob,
            "use_tree_spec": is_tree,
        }
        self._contexts: dict[str, Tokens] = {}
        self._numbers = itertools.count()
        self._requests: dict[str, str] = {}

    def start(self, name: str, call: Call) -> None:
        """Start a request under a new name. The cache keeps outputs under old names."""
        self._requests[name] = f"{name}-{next(self._numbers)}"
        self._cache.start_request(self._requests[name], call.prompt)
        self._contexts[name] = call.prompt[-DEPTH:]

    def step(self, name: str, accepted: Tokens) -> Draft:
        """Draft from both trees. The draft with the higher score wins."""
        self._take(name, accepted)
        made = self._cache.speculate(self._requests[name], self._contexts[name], **self._rule)
        return Draft(
            np.array(made.token_ids, np.int32),
            np.array(made.parents, np.int32),
            np.array(made.probs, np.float32),
            float(made.score),
            int(made.match_len),
            Source.TENANT if len(made.token_ids) else Source.NONE,
        )

    def finish(self, name: str, accepted: Tokens) -> None:
        """Finish the request. Its output stays in the shared tree."""
        self._take(name, accepted)
        self._cache.stop_request(self._requests.pop(name))
        del self._contexts[name]

    def _take(self, name: str, accepted: Tokens) -> None:
        self._cache.add_active_response(self._requests[name], accepted)
        self._contexts[name] = np.concatenate([self._contexts[name], accepted])[-DEPTH:]
