"""Limits on the draft tokens of one step of vLLM's model runner V1, whose sampler has no limits of its own.

Memory: V1 sizes the KV cache after a trial run with one draft token per request. Every further draft token
takes rows of logits that were not counted. V2 works in pieces of 1 GB. Time: if a request of the batch has
penalties or bad words, V1 copies the whole output of each request once per draft token, in Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

SPARE_BYTES = 1 << 30  # vLLM leaves a tenth of the GPU to itself, 8 GB of 80
MOST_COPIED_TOKENS = 20_000  # 0.5 to 1.8 ms (lab/log)
_PADDING_COST = 1 / 16  # of a copied token: each copy is padded to the longest output
# bytes per draft token and word of the vocabulary
_SAMPLING_BYTES = 26  # logits 2, two copies 4 each, sorted 4 and their places 8, chances 4
_PENALTY_BYTES = 22  # counts of prompt and output 8 each, masks 1 each, penalized logits 4


@dataclass(frozen=True, slots=True)
class DraftCap:
    """The most draft tokens of a step, by its sampling.

    Attributes:
        most_tokens: of all rows together.
        most_penalized_tokens: the same if a request has penalties.
        most_copied_tokens: output tokens that such a step copies, over all draft tokens, and their padding.
    """

    most_tokens: int
    most_penalized_tokens: int
    most_copied_tokens: int = MOST_COPIED_TOKENS

    @classmethod
    def of_v1(
        cls, max_num_seqs: int, max_num_batched_tokens: int, vocab_size: int, spare_bytes: int = SPARE_BYTES
    ) -> DraftCap:
        """Return the limits of a server.

        Args:
            max_num_seqs, max_num_batched_tokens: vLLM's. The trial run has one draft token for each of as
                many requests as both allow.
            vocab_size: number of logits of a token.
            spare_bytes: memory that a step may take beyond the trial run.
        """
        profiled = min(max_num_seqs, max_num_batched_tokens)
        spare = spare_bytes // vocab_size
        penalized = spare // _PENALTY_BYTES
        if penalized > profiled:
            penalized = (spare + _SAMPLING_BYTES * profiled) // (_SAMPLING_BYTES + _PENALTY_BYTES)
        return cls(profiled + spare // _SAMPLING_BYTES, penalized)

    def allowed(
        self, lengths: Sequence[int], num_output_tokens: Sequence[int] | None = None
    ) -> Sequence[int]:
        """Return how many of its first draft tokens each row may keep; ``lengths`` itself if all of them.

        The longest drafts are cut first, to a common length: the first tokens of a draft are the likeliest.

        Args:
            lengths: draft tokens of each row.
            num_output_tokens: output tokens of each row, in a batch with penalties or bad words; else None.
        """
        if num_output_tokens is None:
            fits = sum(lengths) <= self.most_tokens
            return lengths if fits else shared(lengths, [1] * len(lengths), self.most_tokens)
        lengths = shared(lengths, [1] * len(lengths), self.most_penalized_tokens)
        padding = 1 + int(_PADDING_COST * max([0, *num_output_tokens]))
        costs = [max(0, number) + padding for number in num_output_tokens]
        return shared(lengths, costs, self.most_copied_tokens)


def shared(lengths: Sequence[int], costs: Sequence[int], most: int) -> list[int]:
    """Return lengths of which the costs come to ``most`` at most.

    Rows below an equal share keep their length, the others get the tokens that one common share pays for.

    Args:
        lengths: tokens that each row wants, 0 or more.
        costs: cost of one token of each row, at least 1.
    """
    wanted, each = np.asarray(lengths, np.int64), np.asarray(costs, np.int64)
    if int(wanted @ each) <= most:
        return list(lengths)
    low, high = 0, int((wanted * each).max())  # the largest share that fits lies in [low, high)
    while high - low > 1:
        share = (low + high) // 2
        if int(np.minimum(wanted, share // each) @ each) <= most:
            low = share
        else:
            high = share
    kept: list[int] = np.minimum(wanted, low // each).tolist()
    return kept
