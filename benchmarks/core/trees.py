"""Time to add documents to one tree and to remove them again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from statistics import median

from benchmarks.core.sides import Index, Side, Tokens
from benchmarks.core.turns import Turns
from benchmarks.harness.process import without_gc

BLOCK_TOKENS = 125_000  # long compared with the time to refill the caches after the other side's turn


def measure(
    sides: Mapping[str, Side], documents: list[Tokens], num_times: int = 1
) -> dict[str, dict[str, float]]:
    """Return ns per token of each side, the median of ``num_times`` runs."""
    times = [_fill_and_empty(sides, documents) for _ in range(num_times)]
    return {
        name: {side: median(one[name][side] for one in times) for side in figure}
        for name, figure in times[0].items()
    }


def _fill_and_empty(sides: Mapping[str, Side], documents: list[Tokens]) -> dict[str, dict[str, float]]:
    """Add all documents, then evict all, the oldest first."""
    indices = {name: side.index() for name, side in sides.items()}
    append, removal, first_half = Turns(), Turns(), {}
    num_gone: Counter[str] = Counter()
    blocks = list(_blocks(documents))
    with without_gc():
        for block in blocks:
            append.take({name: partial(_add, index, block) for name, index in indices.items()})
        for i, block in enumerate(blocks):
            size = sum(map(len, block))
            num_gone.update(removal.take({name: partial(one.evict, size) for name, one in indices.items()}))
            if i + 1 == len(blocks) // 2:
                first_half = _ns_per_token(removal, num_gone)
    num_added = dict.fromkeys(indices, sum(map(len, documents)))
    return {
        "append_ns_per_token": _ns_per_token(append, num_added),
        "removal_ns_per_token": _ns_per_token(removal, num_gone),
        "removal_ns_per_token_first_half": first_half,
    }


def _ns_per_token(turns: Turns, num_tokens: Mapping[str, int]) -> dict[str, float]:
    return {name: s * 1e9 / max(1, num_tokens[name]) for name, s in turns.totals_s().items()}


def _blocks(documents: list[Tokens]) -> Iterator[list[Tokens]]:
    block: list[Tokens] = []
    for document in documents:
        block.append(document)
        if sum(map(len, block)) >= BLOCK_TOKENS:
            yield block
            block = []
    if block:
        yield block


def _add(index: Index, block: list[Tokens]) -> None:
    for document in block:
        index.add(document)
