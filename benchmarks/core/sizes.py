"""Sizes of the full and the quick core benchmark."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sizes:
    """Amounts of data and numbers of repetitions.

    Attributes:
        corpus_tokens: minimum number of tokens of each of the two corpora.
        num_fills: how often the trees are filled and emptied for timing.
        copies: how often each document of the repeated corpus occurs in it.
        text_tokens: minimum number of tokens of the text that prompts are cut from.
        output_tokens: minimum number of tokens of the text that live requests' outputs are cut from.
        num_history: past outputs that both sides have learned before they decode.
        prompt_tokens: tokens of a live request's prompt.
        batch_sizes: live requests of a decode step.
        num_steps: decode steps timed at each batch size, four times as many of 1 and 2 threads.
        ingest_tokens: sizes of the prompts for indexing times.
        num_starts: prompts timed of each of these sizes.
        num_memory_requests: live requests for the memory per prompt token.
    """

    corpus_tokens: int = 2_000_000
    num_fills: int = 1
    copies: int = 10
    text_tokens: int = 1_500_000
    output_tokens: int = 300_000
    num_history: int = 6_000
    prompt_tokens: int = 8_192
    batch_sizes: tuple[int, ...] = (1, 16, 64, 256)
    num_steps: int = 150
    ingest_tokens: tuple[int, ...] = (2_048, 8_192, 32_768)
    num_starts: int = 21
    num_memory_requests: int = 64


FULL = Sizes()
QUICK = Sizes(
    corpus_tokens=500_000,
    num_fills=3,
    text_tokens=500_000,
    output_tokens=100_000,
    num_history=2_000,
    num_steps=30,
    num_starts=9,
    num_memory_requests=16,
)
