"""Resident memory, measured on a tree of known size."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence

import numpy as np

from benchmarks.core import memory
from benchmarks.core.sides import Batch, Side, Tokens

BYTES_PER_TOKEN = 4_000  # large compared with the interpreter's own needs


class FilledPages:
    """An index that keeps ``BYTES_PER_TOKEN`` bytes for every token."""

    def __init__(self) -> None:
        self._documents: deque[bytes] = deque()

    def add(self, document: Tokens) -> None:
        self._documents.append(b"x" * (BYTES_PER_TOKEN * len(document)))

    def evict(self, num_tokens: int) -> int:
        num_gone = 0
        while num_gone < num_tokens and self._documents:
            num_gone += len(self._documents.popleft()) // BYTES_PER_TOKEN
        return num_gone


class FilledRequests:
    """The same for live requests."""

    def __init__(self) -> None:
        self._pages = FilledPages()

    def learn(self, output: Tokens) -> None:
        raise NotImplementedError

    def start(self, request: str, prompt: Tokens) -> None:
        self._pages.add(prompt)

    def step(self, batch: Batch) -> Sequence[Collection[int]]:
        raise NotImplementedError

    def finish(self, request: str) -> None:
        raise NotImplementedError


SIDES = {"pages": Side("1", FilledPages, FilledRequests)}
DOCUMENTS = [np.zeros(1_000, np.int32)] * 10


def test_a_tree_is_measured_full_half_and_empty() -> None:
    figures = memory.of_trees(SIDES, "mixed", DOCUMENTS)
    shares = {name: by_side["pages"] / BYTES_PER_TOKEN for name, by_side in figures.items()}
    assert {name: round(share, 1) for name, share in shares.items()} == {
        "bytes_per_token_mixed": 1.0,
        "bytes_per_token_mixed_half": 0.5,
        "bytes_per_token_mixed_empty": 0.0,
        "bytes_per_token_mixed_empty_trimmed": 0.0,
    }


def test_live_requests_are_measured() -> None:
    [(name, by_side)] = memory.of_requests(SIDES, DOCUMENTS).items()
    assert name == "request_bytes_per_prompt_token"
    assert round(by_side["pages"] / BYTES_PER_TOKEN, 1) == 1.0
