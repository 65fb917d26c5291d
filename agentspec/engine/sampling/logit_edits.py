"""What a request asks to change in the model's logits before a token is chosen: biases, penalties, bans.

Every edit of a row is a function of the prompt and of the path to this row: the output so far, then the draft
tokens from the root to the row's node. So a row is edited alike with and without drafts. The order is vLLM's,
but the grammar has precedence: a ban that would leave none of the tokens that it allows is not applied.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agentspec.draft import Draft
from agentspec.engine.sampling.state import SamplerState
from agentspec.proposer import Tokens


@dataclass(slots=True, eq=False)
class OutputRows:
    """The rows of one output that needs more than an argmax: its root and its draft tokens."""

    state: SamplerState
    draft: Draft
    rows: NDArray[np.int64]

    @property
    def starts_from_argmax(self) -> bool:
        """True if the argmax of the raw logits is needed first."""
        return self.state.is_only_constrained or self.state.forced_ids is not None

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

    def paths(self, length: int) -> list[list[int]]:
        """Return at least the last ``length`` output tokens before each row, or all if there are fewer."""
        output_ids = self.state.output_ids
        paths = [output_ids[max(0, len(output_ids) - length) :]]
        for parent, token in zip(self.draft.parents.tolist(), self.draft.token_ids.tolist(), strict=True):
            paths.append([*paths[1 + parent], token])
        return paths


def edit(logits: Tensor, part: OutputRows) -> None:
    """Edit one output's float64 rows ``[1 + n, vocab]`` in place."""
    state = part.state
    if state.params.logit_bias:
        _add_bias(logits, state.params.logit_bias)
    if state.has_penalty:
        _penalize(logits, part)
    if state.grammar is not None:
        forbidden = torch.from_numpy(~state.grammar.masks(part.draft))
        logits.masked_fill_(forbidden.to(logits.device), -torch.inf)
    if state.has_bans:
        _ban(logits, part)


def _add_bias(logits: Tensor, biases: Mapping[int, float]) -> None:
    columns = torch.tensor(list(biases), device=logits.device)
    logits[:, columns] += torch.tensor(list(biases.values()), dtype=logits.dtype, device=logits.device)


def _penalize(logits: Tensor, part: OutputRows) -> None:
    """Apply the repetition penalty, then those of frequency and presence."""
    params = part.state.params
    tokens, counts = _counts(part)
    columns = torch.from_numpy(tokens).to(logits.device)
    own = logits[:, columns]
    if params.repetition_penalty != 1:
        is_repeated = torch.from_numpy((counts > 0) | np.isin(tokens, _prompt_ids(part)))
        penalized = torch.where(own > 0, own / params.repetition_penalty, own * params.repetition_penalty)
        own = torch.where(is_repeated.to(logits.device), penalized, own)
    penalties = params.presence_penalty * (counts > 0) + params.frequency_penalty * counts
    logits[:, columns] = own - torch.from_numpy(penalties).to(logits.device)


def _counts(part: OutputRows) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The tokens that penalties concern ``[k]``, and how often each row's output has them ``[1 + n, k]``.

    At a node of the draft that includes the path to it: were the node reached, those would be put out.
    """
    output_ids = np.array(part.state.output_ids, np.int64)
    found: list[NDArray[np.integer[Any]]] = [output_ids, part.draft.token_ids]
    if part.state.params.repetition_penalty != 1:
        found.append(_prompt_ids(part))
    tokens, columns = np.unique(np.concatenate(found), return_inverse=True)
    counts = np.zeros((len(part.rows), len(tokens)))
    counts += np.bincount(columns[: len(output_ids)], minlength=len(tokens))
    rows, nodes = part.lineage().nonzero()
    np.add.at(counts, (rows, columns[len(output_ids) + nodes]), 1)
    return tokens, counts


def _prompt_ids(part: OutputRows) -> Tokens:
    assert part.state.prompt_ids is not None
    return part.state.prompt_ids


def _ban(logits: Tensor, part: OutputRows) -> None:
    """Exclude tokens: those that are not allowed, the ends of bad words, and an end that is too early."""
    state, shape = part.state, tuple(logits.shape)
    if state.params.allowed_token_ids is not None:
        banned = np.ones(shape, np.bool_)
        banned[:, list(state.params.allowed_token_ids)] = False
        _exclude(logits, banned)
    if state.bad_words:
        banned = np.zeros(shape, np.bool_)
        for row, path in enumerate(part.paths(max(map(len, state.bad_words)) - 1)):
            banned[row, [word[-1] for word in state.bad_words if _would_end(word, path)]] = True
        _exclude(logits, banned)
    if state.is_too_short:
        banned = np.zeros(shape, np.bool_)
        early = part.positions() < state.params.min_tokens
        banned[np.ix_(early, np.array(sorted(state.end_ids), np.int64))] = True
        _exclude(logits, banned)


def _would_end(word: tuple[int, ...], path: list[int]) -> bool:
    """True if the word's last token would complete it after ``path``."""
    return len(word) == 1 or tuple(path[1 - len(word) :]) == word[:-1]


def _exclude(logits: Tensor, banned: NDArray[np.bool_]) -> None:
    left = logits.masked_fill(torch.from_numpy(banned).to(logits.device), -torch.inf)
    is_empty = (left == -torch.inf).all(-1, keepdim=True)
    logits.copy_(torch.where(is_empty, logits, left))
