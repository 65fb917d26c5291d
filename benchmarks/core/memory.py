"""Memory as the operating system counts it: resident bytes of a fresh process that does nothing else."""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import ParamSpec, TypeVar

import numpy as np

from agentspec.benchmarks.core.sides import Decoder, Index, Side, Tokens

WARM_UP_TOKENS = 256

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def of_trees(sides: Mapping[str, Side], corpus: str, documents: list[Tokens]) -> dict[str, dict[str, float]]:
    """Bytes per token of each side's tree of the documents.

    The whole tree; ``half``: without the older half of its documents; ``empty``: without all of them;
    ``empty_trimmed``: after the allocator was asked to give back what it keeps.
    """
    figures: dict[str, dict[str, float]] = {}
    for name, side in sides.items():
        for state, size in _in_fresh_process(_tree_sizes, side.index, documents).items():
            figures.setdefault(f"bytes_per_token_{corpus}{state}", {})[name] = size
    return figures


def of_requests(sides: Mapping[str, Side], prompts: list[Tokens]) -> dict[str, dict[str, float]]:
    """Bytes per prompt token of live requests."""
    sizes = {name: _in_fresh_process(_request_size, side.decoder, prompts) for name, side in sides.items()}
    return {"request_bytes_per_prompt_token": sizes}


def _in_fresh_process(
    function: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
) -> Result:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
        return process.submit(function, *args, **kwargs).result()


def _tree_sizes(index_type: type[Index], documents: list[Tokens]) -> dict[str, float]:
    warm_up = index_type()  # the code's own pages are no part of a tree
    warm_up.remove(warm_up.add(documents[0][:WARM_UP_TOKENS]))
    num_tokens, half = sum(map(len, documents)), len(documents) // 2
    numbers = np.full(len(documents), -1)  # touched, so that it is no part of the tree either
    baseline = _resident_bytes(trim=True)
    index, sizes = index_type(), {}
    for i, document in enumerate(documents):
        numbers[i] = index.add(document)
    sizes[""] = _resident_bytes()
    for number in numbers[:half]:
        index.remove(int(number))
    sizes["_half"] = _resident_bytes()
    for number in numbers[half:]:
        index.remove(int(number))
    sizes["_empty"] = _resident_bytes()
    sizes["_empty_trimmed"] = _resident_bytes(trim=True)
    return {state: (resident - baseline) / num_tokens for state, resident in sizes.items()}


def _request_size(decoder_type: type[Decoder], prompts: list[Tokens]) -> float:
    decoder = decoder_type()
    decoder.start("warm-up", prompts[0][:WARM_UP_TOKENS])
    baseline = _resident_bytes(trim=True)
    for i, prompt in enumerate(prompts):
        decoder.start(f"request-{i}", prompt)
    return (_resident_bytes() - baseline) / sum(map(len, prompts))


def _resident_bytes(*, trim: bool = False) -> int:
    if trim:
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
