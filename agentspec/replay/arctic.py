"""The peer: arctic-inference's suffix cache, a tree per live call and one of all outputs."""

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
    """As vLLM's proposer calls it."""

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
        """Names are not used again: the cache keeps outputs under them."""
        self._requests[name] = f"{name}-{next(self._numbers)}"
        self._cache.start_request(self._requests[name], call.prompt)
        self._contexts[name] = call.prompt[-DEPTH:]

    def step(self, name: str, accepted: Tokens) -> Draft:
        """Both trees; the higher score wins."""
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
        """Its output stays in the shared tree."""
        self._take(name, accepted)
        self._cache.stop_request(self._requests.pop(name))
        del self._contexts[name]

    def _take(self, name: str, accepted: Tokens) -> None:
        self._cache.add_active_response(self._requests[name], accepted)
        self._contexts[name] = np.concatenate([self._contexts[name], accepted])[-DEPTH:]
