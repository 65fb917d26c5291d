"""From logits to tokens: the distribution a request asks for, and the choice of a token from it.

Sampling is a *pure function*. The token at output position ``t`` is

    ``token_t = F^-1(u_t)``,    ``F`` the cumulative distribution of the model's next token, after
    penalties, grammar, temperature, min_p, top_k and top_p, given everything before ``t``,

where ``u_t`` in [0, 1) is the ``t``-th number of a counter-based generator keyed by the request's
seed. Since ``u_t`` is uniform and independent of all other positions, ``token_t`` has exactly the
distribution ``F`` (inversion method). And since it depends on nothing but the prefix, the seed and
``t``, it is the same whether the position is computed alone, in a batch, or as a node of a draft.
``verifier`` builds on that. Greedy decoding is the special case ``token_t = argmax``.

Knows nothing of slots, stages or the engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agentspec.draft import Draft
from agentspec.engine.sampler_state import SamplerState

SEED_MASK = (1 << 64) - 1  # a seed is any integer; these bits of it count
_GAMMA = np.uint64(0x9E3779B97F4A7C15)


def choose(logits: Tensor, states: Sequence[SamplerState], drafts: Sequence[Draft]) -> Tensor:
    """The model's token at every node: int64 ``[m]`` for logits ``[m, vocab]``.

    State ``i`` owns the next ``1 + len(drafts[i])`` rows: its root, then its draft tokens in order.
    ``logits`` is not changed. Plain greedy rows cost one argmax over the whole batch; all others go
    through float64 together. O(m * vocab), with top_k or top_p a sort of their rows on top.
    """
    tokens = logits.argmax(-1)
    parts = _special_parts(states, drafts)
    if not parts:
        return tokens
    rows = torch.from_numpy(np.concatenate([part.rows for part in parts])).to(logits.device)
    edited = logits[rows].double()
    views = torch.split(edited, [len(part.rows) for part in parts])
    for part, view in zip(parts, views, strict=True):
        _edit(view, part)
    picked = edited.argmax(-1)
    sampled = [i for i, part in enumerate(parts) if not part.state.is_greedy]
    if sampled:
        is_sampled = torch.from_numpy(
            np.repeat([not p.state.is_greedy for p in parts], [len(v) for v in views])
        )
        picked[is_sampled.to(picked.device)] = _sample(
            torch.cat([views[i] for i in sampled]), [parts[i] for i in sampled]
        )
    tokens[rows] = picked
    return tokens


@dataclass(slots=True, eq=False)
class _Part:
    """The rows of one output that needs more than an argmax: its root and its draft tokens."""

    state: SamplerState
    draft: Draft
    rows: NDArray[np.int64]

    def positions(self) -> NDArray[np.int64]:
        """Index, in the output, of the token that each row decides on."""
        depths = np.arange(len(self.rows))
        if not self.draft.is_chain:
            for node, parent in enumerate(self.draft.parents.tolist()):
                depths[1 + node] = 1 + depths[1 + parent]
        return depths + len(self.state.output_ids)

    def lineage(self) -> NDArray[np.bool_]:
        """bool ``[1 + n, n]``: which draft tokens lie between the root and each row, its own included."""
        size = len(self.draft)
        lineage = np.tri(1 + size, size, -1, dtype=np.bool_)
        if not self.draft.is_chain:
            lineage[:] = False
            for node, parent in enumerate(self.draft.parents.tolist()):
                lineage[1 + node] = lineage[1 + parent]
                lineage[1 + node, node] = True
        return lineage


def _special_parts(states: Sequence[SamplerState], drafts: Sequence[Draft]) -> list[_Part]:
    parts = []
    row = 0
    for state, draft in zip(states, drafts, strict=True):
        end = row + 1 + len(draft)
        if not state.is_plain:
            parts.append(_Part(state, draft, np.arange(row, end)))
        row = end
    return parts


def _edit(logits: Tensor, part: _Part) -> None:
    """Apply one output's penalties and grammar to its rows, in place."""
    if part.state.has_penalty:
        params = part.state.params
        counts = _counts(part, logits)
        logits -= params.presence_penalty * (counts > 0) + params.frequency_penalty * counts
    if part.state.grammar is not None:
        mask = torch.from_numpy(part.state.grammar.masks(part.draft))
        logits.masked_fill_(~mask.to(logits.device), -torch.inf)


def _counts(part: _Part, like: Tensor) -> Tensor:
    """How often each token occurs in the output, for each row: ``[1 + n, vocab]``.

    At a node of the draft that includes the path to it: were the node reached, those would be put out.
    """
    rows, nodes = part.lineage().nonzero()
    counts = np.zeros((len(part.rows), like.shape[-1]))
    counts += np.bincount(np.array(part.state.output_ids, np.int64), minlength=counts.shape[1])
    np.add.at(counts, (rows, part.draft.token_ids[nodes]), 1)
    return torch.from_numpy(counts).to(like.device)


def _sample(logits: Tensor, parts: Sequence[_Part]) -> Tensor:
    sizes = [len(part.rows) for part in parts]

    def column(values: Sequence[float]) -> Tensor:
        return torch.from_numpy(np.repeat(np.array(values, np.float64), sizes)[:, None]).to(logits.device)

    params = [part.state.params for part in parts]
    probs = distribution(
        logits,
        temperature=column([p.temperature for p in params]),
        min_p=column([p.min_p for p in params]),
        top_k=column([p.top_k for p in params]),
        top_p=column([p.top_p for p in params]),
    )
    seeds = np.repeat(np.array([part.state.seed & SEED_MASK for part in parts], np.uint64), sizes)
    numbers = uniforms(seeds, np.concatenate([part.positions() for part in parts]))
    return invert(probs, torch.from_numpy(numbers).to(logits.device))


def distribution(logits: Tensor, temperature: Tensor, min_p: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """The full sampling distribution: float64 ``[m, vocab]``. Parameters are ``[m, 1]``.

    In this order, as vLLM does: temperature; min_p (drop what is less likely than ``min_p`` times the
    most likely token); top_k (keep the ``top_k`` most likely, 0 = all; of equals the lower ids);
    top_p (keep the smallest set of most likely tokens whose probability reaches ``top_p``).
    """
    probs = torch.softmax(logits / temperature, dim=-1)
    if bool((min_p > 0).any()):
        probs = torch.where(probs < min_p * probs.amax(-1, keepdim=True), 0.0, probs)
    if bool((top_k > 0).any()) or bool((top_p < 1).any()):
        probs = _keep_top(probs, top_k, top_p)
    return probs / probs.sum(-1, keepdim=True)


def _keep_top(probs: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    best, order = probs.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(probs.shape[-1], device=probs.device)
    best = torch.where((top_k > 0) & (rank >= top_k), 0.0, best)
    best = best / best.sum(-1, keepdim=True)
    before = best.cumsum(-1) - best  # probability of all that rank higher; 0 for the first, which stays
    best = torch.where((top_p < 1) & (before >= top_p), 0.0, best)
    return torch.zeros_like(probs).scatter_(-1, order, best)


def invert(probs: Tensor, numbers: Tensor) -> Tensor:
    """Inversion method: the first token at which the cumulative probability exceeds ``numbers``.

    ``probs`` is ``[m, vocab]`` (need not add up to exactly 1), ``numbers`` ``[m]`` in [0, 1); the result
    is int64 ``[m]``. A token of probability 0 is never returned, whatever the rounding of the sums.
    """
    cumulative = torch.where(probs > 0, probs.cumsum(-1), 0.0)
    total = cumulative.amax(-1, keepdim=True)
    threshold = torch.minimum(numbers[:, None] * total, torch.nextafter(total, torch.zeros_like(total)))
    return (cumulative > threshold).to(torch.uint8).argmax(-1)  # argmax: the first of equals


def uniforms(seeds: NDArray[np.uint64], positions: NDArray[np.int64]) -> NDArray[np.float64]:
    """Independent uniform numbers in [0, 1), one per (seed, position), by position and not in sequence.

    SplitMix64 (Steele, Lea, Flood 2014) read at an index: the ``t``-th output of the generator whose
    start is the mixed seed, so that neighbouring seeds give unrelated streams.
    """
    steps = positions.astype(np.uint64) + np.uint64(1)
    mixed = _mix(_mix(seeds + _GAMMA) + steps * _GAMMA)
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


@dataclass(frozen=True, slots=True)
class Logprob:
    """Log probability of a token under the raw model, and the most likely alternatives, best first."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


def logprobs(logits: Tensor, token_ids: Sequence[int], num_top: int) -> list[Logprob]:
    """Log probabilities of ``token_ids[i]`` by row ``i`` of the raw logits ``[m, vocab]``.

    Raw: before penalties, grammar, temperature and the like, so that they say what the model thinks.
    """
    values = torch.log_softmax(logits.double(), dim=-1)
    chosen = values.gather(-1, torch.tensor(token_ids, device=logits.device)[:, None])[:, 0].tolist()
    best, order = values.topk(num_top, dim=-1)
    tops = zip(order.tolist(), best.tolist(), strict=True)
    return [
        Logprob(token, value, tuple(zip(ids, probs, strict=True)))
        for token, value, (ids, probs) in zip(token_ids, chosen, tops, strict=True)
    ]
