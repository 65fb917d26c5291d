"""Memory as the operating system counts it: resident bytes of a separate process."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.core.sides import Decoder, Index, Side, Tokens
from benchmarks.harness.process import in_fresh_process, resident_bytes

WARM_UP_TOKENS = 256


def of_trees(sides: Mapping[str, Side], corpus: str, documents: list[Tokens]) -> dict[str, dict[str, float]]:
    """Return bytes per token of each side's tree of the documents.

    No suffix: the whole tree; ``half``: without the older half of its documents; ``empty``: without all of
    them; ``empty_trimmed``: after the allocator returned its free memory.
    """
    figures: dict[str, dict[str, float]] = {}
    for name, side in sides.items():
        for state, size in in_fresh_process(_tree_sizes, side.index, documents).items():
            figures.setdefault(f"bytes_per_token_{corpus}{state}", {})[name] = size
    return figures


def of_requests(sides: Mapping[str, Side], prompts: list[Tokens]) -> dict[str, dict[str, float]]:
    """Return bytes per prompt token of live requests."""
    sizes = {name: in_fresh_process(_request_size, side.decoder, prompts) for name, side in sides.items()}
    return {"request_bytes_per_prompt_token": sizes}


def _tree_sizes(index_type: type[Index], documents: list[Tokens]) -> dict[str, float]:
    warm_up = index_type()  # code pages are not part of a tree
    warm_up.add(documents[0][:WARM_UP_TOKENS])
    warm_up.evict(WARM_UP_TOKENS)
    num_tokens, num_older = (sum(map(len, some)) for some in (documents, documents[: len(documents) // 2]))
    baseline = resident_bytes(trim=True)
    index, sizes = index_type(), {}
    for document in documents:
        index.add(document)
    sizes[""] = resident_bytes()
    index.evict(num_older)
    sizes["_half"] = resident_bytes()
    index.evict(num_tokens)
    sizes["_empty"] = resident_bytes()
    sizes["_empty_trimmed"] = resident_bytes(trim=True)
    return {state: (resident - baseline) / num_tokens for state, resident in sizes.items()}


def _request_size(decoder_type: type[Decoder], prompts: list[Tokens]) -> float:
    decoder = decoder_type()
    decoder.start("warm-up", prompts[0][:WARM_UP_TOKENS])
    baseline = resident_bytes(trim=True)
    for i, prompt in enumerate(prompts):
        decoder.start(f"request-{i}", prompt)
    return (resident_bytes() - baseline) / sum(map(len, prompts))
