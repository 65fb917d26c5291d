"""Samples as padded batches of token ids, with the positions used for training."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from random import Random

import torch
from tokenizers import Tokenizer
from torch import Tensor

from examples.agentic_sql.samples import Sample, copying, mixed
from lab.sql_model.vocabulary import END, render

_POOL = 256  # samples sorted by length at a time: little padding, still random batches


@dataclass(frozen=True, slots=True)
class Batch:
    """``ids`` int64 [batch, length]; ``wanted`` bool, the same shape: every position with a next token.

    Per wanted position: ``labels`` int64, the next token; ``is_target`` bool, True if that token is part of
    the answer, False for the prompt; ``rows`` int64, its sample. ``stages`` has each sample's stage.
    """

    ids: Tensor
    wanted: Tensor
    labels: Tensor
    is_target: Tensor
    rows: Tensor
    stages: tuple[str, ...]


def encode(sample: Sample, tokenizer: Tokenizer) -> tuple[list[int], int]:
    """Return the token ids of prompt + target + end, and the prompt's length."""
    prompt = tokenizer.encode(render(sample.messages)).ids
    return prompt + tokenizer.encode(sample.target + END).ids, len(prompt)


def make(samples: list[tuple[list[int], int, str]]) -> Batch:
    """Return one padded batch of encoded samples."""
    length = max(len(ids) for ids, _, _ in samples)
    ids = torch.zeros(len(samples), length, dtype=torch.int64)
    wanted = torch.zeros(len(samples), length, dtype=torch.bool)
    is_target = torch.zeros(len(samples), length, dtype=torch.bool)
    for row, (tokens, num_prompt, _) in enumerate(samples):
        ids[row, : len(tokens)] = torch.tensor(tokens)
        wanted[row, : len(tokens) - 1] = True
        is_target[row, num_prompt - 1 : len(tokens) - 1] = True
    shifted = torch.roll(ids, -1, dims=1)
    rows, stages = wanted.nonzero()[:, 0], tuple(stage for _, _, stage in samples)
    return Batch(ids, wanted, shifted[wanted], is_target[wanted], rows, stages)


def with_copying(
    samples: Iterator[Sample], tokenizer: Tokenizer, num_tokens: int, seed: int, num_batches: int
) -> Iterator[Batch]:
    """Yield endless batches. In the first ones, every second sample is one of ``samples.copying``."""
    early = stream(mixed(samples, copying(seed)), tokenizer, num_tokens, seed)
    yield from islice(early, max(0, num_batches))
    yield from stream(samples, tokenizer, num_tokens, seed)


def stream(samples: Iterator[Sample], tokenizer: Tokenizer, num_tokens: int, seed: int) -> Iterator[Batch]:
    """Yield endless batches of about ``num_tokens`` padded tokens, with samples of similar length."""
    rng = Random(seed)
    while True:
        pool = [(*encode(s, tokenizer), s.stage) for s in islice(samples, _POOL)]
        pool.sort(key=lambda entry: len(entry[0]))
        batches: list[list[tuple[list[int], int, str]]] = [[]]
        for entry in pool:
            if batches[-1] and (len(batches[-1]) + 1) * len(entry[0]) > num_tokens:
                batches.append([])
            batches[-1].append(entry)
        rng.shuffle(batches)
        yield from (make(b) for b in batches)
