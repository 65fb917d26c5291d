"""How predictable a stage's outputs are, before anything is drafted (paper, appendix A.2.3)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from agentspec.forest import Tokens
from agentspec.replay.calls import Call

NUM_EXAMPLES = 100  # outputs of a stage: the paper finds so many to be enough
DEPTH = 64


def entropy_by_stage(calls: Iterable[Call], num_examples: int = NUM_EXAMPLES) -> dict[str, float]:
    """Empirical entropy in bits of each stage's first ``num_examples`` outputs."""
    outputs: defaultdict[str, list[Tokens]] = defaultdict(list)
    for call in calls:
        if len(outputs[call.stage]) < num_examples:
            outputs[call.stage].append(call.response)
    return {stage: empirical_entropy(texts) for stage, texts in sorted(outputs.items())}


def empirical_entropy(texts: Sequence[Tokens], depth: int = DEPTH) -> float:
    """Mean uncertainty about the next token, in bits.

    A node is a string of 0 to ``depth`` tokens that occurs in the texts and that a token follows at least
    twice (the suffix tree's root, and every place on its edges that two suffixes share). Its entropy is that
    of the tokens that followed it, by how often each did. Nodes are weighted with how often they were
    followed. 0 if there are no nodes.

    The paper names neither unit, weights nor depth: its figures are of the same kind, not the same digits.
    What occurs once is left out: its entropy is 0 whatever the text is like. The end of a text counts as a
    token if the texts end with one. O(n * depth * log n), less where strings stop recurring.
    """
    lengths = [len(text) for text in texts]
    tokens = np.concatenate([np.empty(0, np.int32), *texts]).astype(np.int64)
    ends = np.repeat(np.cumsum(lengths, dtype=np.int64), lengths)
    following = np.arange(len(tokens))  # of each occurrence of a node: where the token is that follows
    nodes = np.zeros(len(tokens), np.int64)
    bits, weight = 0.0, 0
    for _ in range(depth + 1):
        following, nodes, ends = _recurring(nodes, following, nodes, ends)
        if not len(nodes):
            break
        children, which = np.unique(nodes << 32 | tokens[following], return_inverse=True)
        bits += _total_bits(children >> 32, np.bincount(which))
        weight += len(nodes)
        inside = following + 1 < ends
        following, nodes, ends = following[inside] + 1, which[inside], ends[inside]
    return bits / weight if weight else 0.0


def _recurring(nodes: NDArray[np.int64], *columns: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """The rows whose node has several."""
    if not len(nodes):
        return list(columns)
    _, which, counts = np.unique(nodes, return_inverse=True, return_counts=True)
    return [column[counts[which] > 1] for column in columns]


def _total_bits(nodes: NDArray[np.int64], counts: NDArray[np.int64]) -> float:
    """The nodes' entropies, each times its weight; of each child its node and how often it followed."""
    of_node = np.bincount(nodes, counts)[nodes]
    return float(-(counts * np.log2(counts / of_node)).sum())
