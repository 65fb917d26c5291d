"""Guesses of sampled tokens that know the sampler's random numbers.

A sampled token wins a race: ``argmin over i of e_i / p(i)``, and the numbers ``e`` are known beforehand
(:mod:`agentspec.engine.sampling.sampler`). A drafter that estimates ``p`` by ``q`` runs the same race with
``q``. Its winner is the sampled token with a chance of at least ``(1 - d) / (1 + d)``, ``d`` the total
variation distance of ``p`` and ``q`` (Daliri, Musco and Suresh, arXiv 2408.07978); the likeliest token by
``q`` is it with a chance of ``p(i)`` only. ``p`` decides what is accepted as ever, so no output changes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agentspec.engine.sampling.sampler import (
    RACE_BLOCK,
    SEED_MASK,
    Filters,
    exponentials,
    filters_of,
    num_clocks,
    rank,
    weights,
)
from agentspec.engine.sampling.state import SamplerState

_HEAD = 512  # likeliest tokens among which top_k and top_p choose here
_BLOCKS = 1.5  # sharpness for blocks: the sum of estimates is closer to the truth than each of them
_LEAST_SHARPNESS, _MOST_SHARPNESS = 0.25, 16.0
_RATE = 0.05  # of learning


class Sharpness:
    """How far the winners by a drafter's estimates can be relied on, learned from samples.

    Were ``log q`` off by independent Gumbel numbers of scale ``1 / s``, a token's chance to win would be
    proportional to ``(q / e) ** s``. The sharpness ``s`` is right where as many guesses come true as their
    chances say.

    Attributes:
        value: the sharpness.
    """

    def __init__(self) -> None:
        self.value = 1.0

    def learn(self, chance: float, *, is_true: bool) -> None:
        """Take the chance of a request's best guess, and whether its token was sampled."""
        found = self.value * math.exp(_RATE * (is_true - chance))
        self.value = min(_MOST_SHARPNESS, max(_LEAST_SHARPNESS, found))


def likely_winners(
    log_probs: Tensor,
    states: Sequence[SamplerState],
    positions: NDArray[np.int64],
    most: int,
    sharpness: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Return the tokens that are likeliest to be sampled, by estimates of the model's chances.

    Penalties and grammars are left out.

    Args:
        log_probs: float32 ``[rows, vocab]``, estimated log chances at temperature 1.
        states: of each row, not greedy.
        positions: index of each row's token in its output, int64 ``[rows]``.
        most: tokens per row, at most ``vocab``.
        sharpness: see :class:`Sharpness`.

    Returns:
        Log chances ``[rows, most]``, the likeliest token first, and token ids, int64 ``[rows, most]``.
        Tokens that a filter excludes have a chance of 0.
    """
    num_rows, vocab_size = log_probs.shape
    seeds = np.array([state.seed & SEED_MASK for state in states], np.uint64)
    numbers = exponentials(seeds, positions, num_clocks(vocab_size)).astype(np.float32)
    clocks = torch.from_numpy(numbers).to(log_probs.device).log_()
    shares = _filtered(log_probs, filters_of([state.params for state in states], log_probs.device))
    blocks = torch.nn.functional.pad(shares, (0, -vocab_size % RACE_BLOCK)).view(num_rows, -1, RACE_BLOCK)
    by_block = _log_chances(_BLOCKS * sharpness * (blocks.sum(-1).log_() - clocks[:, :-RACE_BLOCK]))
    of_block, chosen = by_block.topk(min(most, by_block.shape[1]))
    rivals = blocks[torch.arange(num_rows, device=blocks.device)[:, None], chosen]
    within = _log_chances(sharpness * (rivals.log_() - clocks[:, None, -RACE_BLOCK:]))
    best, places = (of_block[:, :, None] + within).flatten(1).topk(most)
    return best, chosen.gather(1, places // RACE_BLOCK) * RACE_BLOCK + places % RACE_BLOCK


def _filtered(log_probs: Tensor, filters: Filters) -> Tensor:
    """Return each row's estimates by its filters, but for a factor: ``[rows, vocab]``."""
    shares = weights(log_probs, filters)
    is_ranked = ((filters.top_k > 0) | (filters.top_p < 1))[:, 0]
    if bool(is_ranked.any()):
        head = rank(log_probs[is_ranked], filters.of(is_ranked), _HEAD)
        kept = torch.zeros_like(shares[is_ranked])
        shares[is_ranked] = kept.scatter_(1, head.token_ids, head.weights.to(kept.dtype))
    return shares


def _log_chances(logs: Tensor) -> Tensor:
    """Return the logs but for a constant, so that the chances of the last dimension add up to 1, or are 0."""
    return torch.log_softmax(logs, -1).nan_to_num_(nan=-torch.inf, neginf=-torch.inf)
