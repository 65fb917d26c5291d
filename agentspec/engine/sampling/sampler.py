"""From logits to tokens: the distribution a request asks for, and the choice of a token from it.

Sampling is a *pure function*. The token at output position ``t`` wins an exponential race:

    ``token_t = argmin over i of e_t,i / p(i)``,    ``p`` the distribution of the model's next token,
    after bias, penalties, grammar, bans, temperature, min_p, top_k and top_p, given everything before ``t``,

where the ``e_t,i`` are independent exponential numbers of a counter-based generator keyed by the
request's seed and ``t``. The winner has exactly the distribution ``p`` (the Gumbel-max trick: this is
``argmax of log p(i) + g_i`` with ``g = -log e``). And since it depends on nothing but the prefix, the
seed and ``t``, it is the same whether the position is computed alone, in a batch, or as a node of a
draft. ``verifier`` builds on that. Greedy decoding is the special case ``token_t = argmax``.

A forward pass rounds differently for other batches, so that logits differ in their last bits. Such a
difference changes the winner only at a near tie, as it does in greedy decoding, or if it moves a token
across the border of a filter. By inversion, ``F^-1(u_t)``, it could change the token at any of the borders
between tokens.

Knows nothing of slots, stages or the engine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agentspec.draft import Draft
from agentspec.engine.sampling.logit_edits import OutputRows, edit
from agentspec.engine.sampling.state import SamplerState

SEED_MASK = (1 << 64) - 1  # a seed is any integer; these bits of it count
_GAMMA = np.uint64(0x9E3779B97F4A7C15)
# float64 values worked on at a time: on a CPU what its cache holds, else what memory can spare
BLOCK_SIZE_CPU = 1 << 17
BLOCK_SIZE_GPU = 1 << 25
# number of a row's most likely tokens that top_k and top_p read first; all are sorted only if needed
HEAD_WIDTHS = (64, 512, 4096)
RACE_BLOCK = 256  # tokens that race as one before they race with each other; a power of 2


def choose(logits: Tensor, states: Sequence[SamplerState], drafts: Sequence[Draft]) -> Tensor:
    """Return the model's token at every node: int64 ``[m]`` for logits ``[m, vocab]``.

    State ``i`` owns the next ``1 + len(drafts[i])`` rows: its root, then its draft tokens in order.
    ``logits`` is not changed. Plain greedy rows cost one argmax over the whole batch, a grammar adds to
    that where it refuses the argmax; all others go through float64, a block at a time. O(m * vocab).
    Forced rows pay for the argmax too, so that a replayed step takes as long as a real one.
    """
    parts = _special_parts(states, drafts)
    if not parts:
        return logits.argmax(-1)
    needs_argmax = len(parts) < len(states) or any(part.starts_from_argmax for part in parts)
    tokens = logits.argmax(-1) if needs_argmax else torch.empty_like(logits[:, 0], dtype=torch.int64)
    for part in parts:
        if part.state.forced_ids is not None:
            _dictate(tokens, part, part.state.forced_ids)
        elif part.state.is_only_constrained:
            _correct(logits, tokens, part)
    greedy = [part for part in parts if part.state.is_greedy and part.state.is_edited]
    sampled = [part for part in parts if not part.state.is_greedy]
    for group in (greedy, sampled):
        for block in _blocks(group, logits):
            rows = torch.from_numpy(np.concatenate([part.rows for part in block])).to(logits.device)
            edited = logits[rows].double()
            views = torch.split(edited, [len(part.rows) for part in block])
            for part, view in zip(block, views, strict=True):
                edit(view, part)
            tokens[rows] = edited.argmax(-1) if group is greedy else _sample(edited, block)
    return tokens


def _special_parts(states: Sequence[SamplerState], drafts: Sequence[Draft]) -> list[OutputRows]:
    parts = []
    row = 0
    for state, draft in zip(states, drafts, strict=True):
        end = row + 1 + len(draft)
        if not state.is_plain:
            parts.append(OutputRows(state, draft, np.arange(row, end)))
        row = end
    return parts


def _blocks(parts: Sequence[OutputRows], like: Tensor) -> Iterator[list[OutputRows]]:
    """The parts in groups of about a block's size; a part is never divided."""
    limit = (BLOCK_SIZE_CPU if like.device.type == "cpu" else BLOCK_SIZE_GPU) // like.shape[-1]
    block: list[OutputRows] = []
    num_rows = 0
    for part in parts:
        num_rows += len(part.rows)
        if block and num_rows > limit:
            yield block
            block, num_rows = [], len(part.rows)
        block.append(part)
    if block:
        yield block


def _dictate(tokens: Tensor, part: OutputRows, forced_ids: NDArray[np.int32]) -> None:
    """Write the forced tokens in place. Beyond their end, where no token is accepted, write the last one."""
    dictated = forced_ids[np.minimum(part.positions(), len(forced_ids) - 1)]
    tokens[int(part.rows[0]) : int(part.rows[-1]) + 1] = torch.from_numpy(dictated).to(tokens.device)


def _correct(logits: Tensor, tokens: Tensor, part: OutputRows) -> None:
    """Correct, in place, the tokens of one greedy output that its grammar refuses."""
    grammar = part.state.grammar
    assert grammar is not None
    rows = slice(int(part.rows[0]), int(part.rows[-1]) + 1)
    own = logits[rows]

    def best(row: int, mask: NDArray[np.bool_]) -> int:
        allowed = torch.from_numpy(mask).to(own.device)
        return int(own[row].masked_fill(~allowed, -torch.inf).argmax())

    found = tokens[rows].tolist()
    corrected = grammar.correct(part.draft, found, best)
    if corrected != found:
        tokens[rows] = torch.tensor(corrected, device=tokens.device)


class Filters(NamedTuple):
    """Limits of each row's distribution: float64 ``[m, 1]`` each, one value per row.

    In this order, as vLLM does: temperature; min_p (drop what is less likely than ``min_p`` times the
    most likely token); top_k (keep the ``top_k`` most likely, 0 = all; of equals the lower ids);
    top_p (keep the smallest set of most likely tokens whose probability reaches ``top_p``).
    """

    temperature: Tensor
    min_p: Tensor
    top_k: Tensor
    top_p: Tensor

    def of(self, rows: Tensor) -> Filters:
        """Return the limits of some rows."""
        return Filters(*(column[rows] for column in self))


def _sample(logits: Tensor, parts: Sequence[OutputRows]) -> Tensor:
    sizes = [len(part.rows) for part in parts]

    def column(values: Sequence[float]) -> Tensor:
        return torch.from_numpy(np.repeat(np.array(values, np.float64), sizes)[:, None]).to(logits.device)

    params = [part.state.params for part in parts]
    filters = Filters(
        column([p.temperature for p in params]),
        column([p.min_p for p in params]),
        column([p.top_k for p in params]),
        column([p.top_p for p in params]),
    )
    seeds = np.repeat(np.array([part.state.seed & SEED_MASK for part in parts], np.uint64), sizes)
    positions = np.concatenate([part.positions() for part in parts])
    clocks = exponentials(seeds, positions, num_clocks(logits.shape[-1]))
    return sample(logits, filters, torch.from_numpy(clocks).to(logits.device))


def sample(logits: Tensor, filters: Filters, clocks: Tensor) -> Tensor:
    """Return the winner of each row's race: int64 ``[m]``, for float64 logits ``[m, vocab]``."""
    is_ranked = ((filters.top_k > 0) | (filters.top_p < 1))[:, 0]
    if not bool(is_ranked.any()):
        return race(weights(logits, filters), clocks)
    tokens = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
    free, open_ = (~is_ranked).nonzero()[:, 0], is_ranked.nonzero()[:, 0]
    if len(free):
        tokens[free] = race(weights(logits[free], filters.of(free)), clocks[free])
    for width in _head_widths(logits.shape[-1]):
        head = rank(logits[open_], filters.of(open_), width)
        tokens[open_] = race_head(head, clocks[open_])
        open_ = open_[~head.is_settled]
        if not len(open_):
            break
    return tokens


def _head_widths(vocab_size: int) -> list[int]:
    """Return the numbers of tokens to look at, in order. Near the whole vocabulary, a sort is as fast."""
    return [*(width for width in HEAD_WIDTHS if 4 * width <= vocab_size), vocab_size]


def weights(logits: Tensor, filters: Filters) -> Tensor:
    """Return probabilities by temperature and min_p, relative to the most likely token's: ``[m, vocab]``."""
    return _relative(logits, logits.amax(-1, keepdim=True), filters)


def _relative(logits: Tensor, best: Tensor, filters: Filters) -> Tensor:
    relative = (logits - best).div_(filters.temperature).exp_()
    if bool((filters.min_p > 0).any()):
        relative *= relative >= filters.min_p
    return relative


class Head(NamedTuple):
    """The most likely tokens of each row, the best first, of equals the lower id first.

    Attributes:
        weights: float64 ``[m, width]``, relative probabilities; 0 where a filter drops the token.
        token_ids: int64 ``[m, width]``.
        is_settled: bool ``[m]``; False where tokens beyond the head may have a share too.
    """

    weights: Tensor
    token_ids: Tensor
    is_settled: Tensor


def rank(logits: Tensor, filters: Filters, width: int) -> Head:
    """Apply top_k and top_p to each row, as far as its ``width`` most likely tokens determine the result.

    ``topk`` may order equal logits arbitrarily, so only tokens that are more likely than its last one are
    used. The weights of a settled row don't depend on ``width``.
    """
    width = min(width, logits.shape[-1])
    values, token_ids = _most_likely(logits, width)
    relative = _relative(values, values[:, :1], filters)
    has_top_k = filters.top_k > 0
    is_kept = (relative > 0) & (~has_top_k | (torch.arange(width, device=logits.device) < filters.top_k))
    relative *= is_kept
    total = relative.sum(-1, keepdim=True)
    if not bool(has_top_k.all()):
        total = torch.where(has_top_k, total, weights(logits, filters).sum(-1, keepdim=True))
    decisive = is_kept.sum(-1, keepdim=True)  # number of tokens that were needed
    before = relative.cumsum(-1) - relative  # weight of all that rank higher; 0 for the first, which stays
    is_kept &= (filters.top_p >= 1) | (before < filters.top_p * total)
    decisive = torch.where(has_top_k, decisive, is_kept.sum(-1, keepdim=True))
    last = values.gather(-1, decisive.clamp_(min=1) - 1)
    is_settled = (last > values[:, -1:])[:, 0] | (width == logits.shape[-1])
    return Head(relative * is_kept, token_ids, is_settled)


def _most_likely(logits: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Return values and ids of the highest logits, sorted; of equals the lower id is first."""
    if width == logits.shape[-1]:
        return logits.sort(dim=-1, descending=True, stable=True)
    token_ids = logits.topk(width, dim=-1).indices.sort(-1).values
    values, order = logits.gather(-1, token_ids).sort(dim=-1, descending=True, stable=True)
    return values, token_ids.gather(-1, order)


def num_clocks(vocab_size: int) -> int:
    """Return how many exponential numbers a row's race takes: one per block, one per place in a block."""
    return -(-vocab_size // RACE_BLOCK) + RACE_BLOCK


def race(relative: Tensor, clocks: Tensor) -> Tensor:
    """Return the winner of each row's exponential race: int64 ``[m]``.

    ``relative`` is ``[m, vocab]``, probabilities but for a factor per row, ``clocks`` ``[m, num_clocks]``
    exponential numbers. First blocks of tokens race by their sums, then the tokens of the winning block
    with numbers of their own: ``P(block) P(token | block)`` is ``P(token)``, for some ``vocab / 256 + 256``
    numbers instead of ``vocab``. A token of probability 0 loses to all others.
    """
    num_rows, vocab_size = relative.shape
    padding = -vocab_size % RACE_BLOCK
    blocks = torch.nn.functional.pad(relative, (0, padding)).view(num_rows, -1, RACE_BLOCK)
    block = (clocks[:, :-RACE_BLOCK] / blocks.sum(-1)).argmin(-1)
    rivals = blocks[torch.arange(num_rows, device=block.device), block]
    place = (clocks[:, -RACE_BLOCK:] / rivals).argmin(-1)
    return block * RACE_BLOCK + place


def race_head(head: Head, clocks: Tensor) -> Tensor:
    """Return what ``race`` returns if only the tokens of a head have a weight: int64 ``[m]``."""
    blocks = head.token_ids // RACE_BLOCK
    num_blocks = clocks.shape[-1] - RACE_BLOCK
    sums = clocks.new_zeros(len(clocks), num_blocks).scatter_add_(1, blocks, head.weights)
    block = (clocks[:, :num_blocks] / sums).argmin(-1, keepdim=True)
    own_clocks = clocks[:, num_blocks:].gather(1, head.token_ids % RACE_BLOCK)
    place = (own_clocks / (head.weights * (blocks == block))).argmin(-1, keepdim=True)
    return head.token_ids.gather(1, place)[:, 0]


def exponentials(
    seeds: NDArray[np.uint64], positions: NDArray[np.int64], num_columns: int
) -> NDArray[np.float64]:
    """Independent exponential numbers above 0, float64 ``[m, num_columns]``, by position and not in sequence.

    SplitMix64 (Steele, Lea, Flood 2014) read at an index, twice: the ``t``-th output of the generator that
    starts at the mixed seed starts the generator of position ``t``. So neighbours give unrelated numbers.
    """
    mixed = _at(_at(seeds, 0)[:, None], positions[:, None])
    mixed = _at(mixed, np.arange(num_columns))
    uniform = ((mixed >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52  # neither 0 nor 1
    return -np.log(uniform)


def _at(starts: NDArray[np.uint64], indices: NDArray[np.int64] | int) -> NDArray[np.uint64]:
    """Output ``index`` of the SplitMix64 generator with this start."""
    return _mix(starts + (np.asarray(indices).astype(np.uint64) + np.uint64(1)) * _GAMMA)


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

    Raw means before penalties, grammar, temperature and the like.
    """
    values = torch.log_softmax(logits.double(), dim=-1)
    chosen = values.gather(-1, torch.tensor(token_ids, device=logits.device)[:, None])[:, 0].tolist()
    best, order = values.topk(num_top, dim=-1)
    tops = zip(order.tolist(), best.tolist(), strict=True)
    return [
        Logprob(token, value, tuple(zip(ids, probs, strict=True)))
        for token, value, (ids, probs) in zip(token_ids, chosen, tops, strict=True)
    ]
