"""Guesses of sampled tokens that know the sampler's random numbers.

A sampled token wins a race: ``argmin over i of e_i / p(i)``, and the numbers ``e`` are known beforehand
(:mod:`agentspec.engine.sampling.sampler`). A drafter that estimates ``p`` by ``q`` runs the same race with
``q``. The likeliest token by ``q`` is the sampled one with a chance of ``p(i)``. The winner by ``q`` is it
with a chance of at least ``(1 - d) / (1 + d)`` if all tokens race at once, ``d`` the total variation distance
of ``p`` and ``q`` (Daliri, Musco and Suresh, arXiv 2408.07978). ``p`` decides what is accepted as ever, so no
output changes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from agentspec.engine.sampling.sampler import RACE_BLOCK, SEED_MASK, exponentials, num_clocks
from agentspec.engine.sampling.state import SamplerState
from agentspec.generation import SamplingParams

HEAD = 256  # likeliest tokens by the estimates, which take part in the race by themselves
_BLOCKS = 1.5  # sharpness for blocks: the sum of estimates is closer to the truth than each of them
_LEAST_SHARPNESS, _MOST_SHARPNESS = 0.25, 16.0
_RATE = 0.05  # of learning
_LEAST = 1e-300  # share of a token, or of a block
_LEAST_LAST = 1e-30  # estimate of the last token; below it, the rest is nothing

Numbers = NDArray[np.float64]


class Sharpness:
    """How far the winners by a drafter's estimates can be relied on, learned from samples.

    Were ``log q`` off by independent Gumbel numbers of scale ``1 / s``, a token's chance to win would be
    proportional to ``(q / e) ** s``. The sharpness ``s`` is right if the share of correct guesses is the mean
    of their chances.

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
    log_probs: NDArray[np.float32],
    token_ids: NDArray[np.int32],
    vocab_size: int,
    states: Sequence[SamplerState],
    positions: NDArray[np.int64],
    sharpness: float = 1.0,
) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
    """Order tokens by their chance to be sampled, given estimates of the model's chances.

    All other tokens are one rest, spread evenly over the race. Penalties and grammars are left out.

    Args:
        log_probs: estimated log chances at temperature 1 of each row's likeliest tokens, float32
            ``[rows, n]``, the likeliest first.
        token_ids: these tokens, int32 ``[rows, n]``.
        vocab_size: of the model.
        states: of each row, not greedy.
        positions: index of each row's token in its output, int64 ``[rows]``.
        sharpness: see :class:`Sharpness`.

    Returns:
        Log chances ``[rows, n]``, the likeliest token first, and the token ids. Tokens that a filter excludes
        have a chance of 0.
    """
    rows = np.arange(len(states))[:, None]
    seeds = np.array([state.seed & SEED_MASK for state in states], np.uint64)
    clocks = np.log(exponentials(seeds, positions, num_clocks(vocab_size)))
    shares, rest = _filtered(log_probs.astype(np.float64), [state.params for state in states])
    blocks, places = token_ids // RACE_BLOCK, token_ids % RACE_BLOCK
    num_blocks = clocks.shape[1] - RACE_BLOCK
    sums = np.repeat(rest / num_blocks, num_blocks, 1)
    np.add.at(sums, (rows, blocks), shares)
    by_block = _softmax(_BLOCKS * sharpness * (np.log(sums + _LEAST) - clocks[:, :num_blocks]))
    logs = sharpness * (np.log(shares + _LEAST) - clocks[rows, num_blocks + places])
    powers = np.exp(logs - logs.max(1, keepdims=True)) * (shares > 0)
    rivals = np.zeros_like(sums)
    np.add.at(rivals, (rows, blocks), powers)
    chances = by_block[rows, blocks] * powers / (rivals[rows, blocks] + _LEAST)
    order = np.argsort(-chances, 1)
    with np.errstate(divide="ignore"):
        return np.log(chances[rows, order]).astype(np.float32), token_ids[rows, order]


def _filtered(log_probs: Numbers, params: Sequence[SamplingParams]) -> tuple[Numbers, Numbers]:
    """Return the shares of tokens by each row's filters ``[rows, n]``, and that of the rest ``[rows, 1]``.

    The rest counts as a number of tokens that are as likely as the last one.
    """

    def column(values: Sequence[float]) -> Numbers:
        return np.array(values, np.float64)[:, None]

    temperature = column([one.temperature for one in params])
    top_k, top_p = column([one.top_k for one in params]), column([one.top_p for one in params])
    probs = np.exp(log_probs)
    weights = np.exp((log_probs - log_probs[:, :1]) / temperature)
    number = np.maximum(0, 1 - probs.sum(1, keepdims=True)) / np.maximum(probs[:, -1:], _LEAST_LAST)
    rest = number * weights[:, -1:]
    ranks = np.arange(weights.shape[1])
    before = np.cumsum(weights, 1) - weights
    is_kept = weights >= column([one.min_p for one in params])
    is_kept &= (top_k <= 0) | (ranks < top_k)
    total = np.where(
        top_k > 0, (weights * is_kept).sum(1, keepdims=True), weights.sum(1, keepdims=True) + rest
    )
    is_kept &= (top_p >= 1) | (before < top_p * total)
    weights *= is_kept
    rest = rest * is_kept[:, -1:]
    total = weights.sum(1, keepdims=True) + rest
    return weights / total, rest / total


def _softmax(logs: Numbers) -> Numbers:
    powers: Numbers = np.exp(logs - logs.max(1, keepdims=True))
    powers /= powers.sum(1, keepdims=True)
    return powers
