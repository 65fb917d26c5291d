"""Time to add documents to one tree and to take them out again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

from agentspec.benchmarks.core.sides import Index, Side, Tokens
from agentspec.benchmarks.core.turns import Turns
from agentspec.benchmarks.process import without_gc

BLOCK_TOKENS = 50_000  # long beside the time it takes to win back the caches from the other side


def measure(sides: Mapping[str, Side], documents: list[Tokens]) -> dict[str, dict[str, float]]:
    """ns per token of each side: all documents go in, then all go out, the oldest first."""
    indices = {name: side.index() for name, side in sides.items()}
    numbers: dict[str, list[int]] = {name: [] for name in sides}
    append, removal, first_half = Turns(), Turns(), {}
    blocks = list(_blocks(documents))
    with without_gc():
        for block in blocks:
            added = append.take({name: partial(_add, index, block) for name, index in indices.items()})
            for name, new in added.items():
                numbers[name] += new
        done = 0
        for i, block in enumerate(blocks):
            going = slice(done, done + len(block))
            removal.take({name: partial(_remove, indices[name], numbers[name][going]) for name in sides})
            done += len(block)
            if i + 1 == len(blocks) // 2:
                first_half = removal.totals_s()
    num_tokens = sum(map(len, documents))
    num_half = sum(len(document) for block in blocks[: len(blocks) // 2] for document in block)
    return {
        "append_ns_per_token": {name: s * 1e9 / num_tokens for name, s in append.totals_s().items()},
        "removal_ns_per_token": {name: s * 1e9 / num_tokens for name, s in removal.totals_s().items()},
        "removal_ns_per_token_first_half": {name: s * 1e9 / num_half for name, s in first_half.items()},
    }


def _blocks(documents: list[Tokens]) -> Iterator[list[Tokens]]:
    block: list[Tokens] = []
    for document in documents:
        block.append(document)
        if sum(map(len, block)) >= BLOCK_TOKENS:
            yield block
            block = []
    if block:
        yield block


def _add(index: Index, block: list[Tokens]) -> list[int]:
    return [index.add(document) for document in block]


def _remove(index: Index, numbers: list[int]) -> None:
    for number in numbers:
        index.remove(number)
