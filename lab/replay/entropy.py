"""Predictability of a stage's outputs, measured before drafting (paper, appendix A.2.3)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from agentspec.forest import Tokens
from agentspec.replay.calls import Call

NUM_EXAMPLES = 100  # outputs of a stage; the paper finds this number to be enough
DEPTH = 64


def entropy_by_stage(calls: Iterable[Call], num_examples: int = NUM_EXAMPLES) -> dict[str, float]:
    """Return the empirical entropy in bits of each stage's first ``num_examples`` outputs."""
    outputs: defaultdict[str, list[Tokens]] = defaultdict(list)
    for call in calls:
        if len(outputs[call.stage]) < num_examples:
            outputs[call.stage].append(call.response)
    return {stage: empirical_entropy(texts) for stage, texts in sorted(outputs.items())}


def empirical_entropy(texts: Sequence[Tokens], depth: int = DEPTH) -> float:
    """Return the mean uncertainty about the next token, in bits.

    A node is a string of 0 to ``depth`` tokens that occurs in the texts and is followed by a token at least
    twice. Nodes are the suffix tree's root and every place on its edges that two suffixes share. A node's
    entropy is that of the tokens that followed it, by frequency. Its weight is the number of times that it
    was followed. The result is 0 if there are no nodes.

    The paper names neither unit, weights nor depth. Its figures are of the same kind but not equal to these.
    Strings that occur once are left out: their entropy is always 0. The end of a text counts as a token if
    the texts end with one. O(n * depth * log n), less where strings stop recurring.
    """
    lengths = [len(text) for text in texts]
    tokens = np.concatenate([np.empty(0, np.int32), *texts]).astype(np.int64)
    ends = np.repeat(np.cumsum(lengths, dtype=np.int64), lengths)
    following = np.arange(len(tokens))  # for each occurrence of a node: index of the next token
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
    """Return the rows of the nodes that have several rows."""
    if not len(nodes):
        return list(columns)
    _, which, counts = np.unique(nodes, return_inverse=True, return_counts=True)
    return [column[counts[which] > 1] for column in columns]


def _total_bits(nodes: NDArray[np.int64], counts: NDArray[np.int64]) -> float:
    """Return the sum of the nodes' entropies, each times its weight.

    Each row is a child: ``nodes`` holds its node and ``counts`` the number of times that it followed.
    """
    of_node = np.bincount(nodes, counts)[nodes]
    return float(-(counts * np.log2(counts / of_node)).sum())
