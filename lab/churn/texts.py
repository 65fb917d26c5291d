"""Endless outputs, made of recorded ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from agentspec.errors import ConfigError
from agentspec.forest import Tokens
from agentspec.replay.calls import TEKKEN, load_tokenizer
from benchmarks.harness import traces

NUM_ROUNDS = 2  # every dataset has one turn in each
MAJORITY = 0.7  # minimum share of outputs from the dataset that has its turn
MOST_KEPT = 7  # maximum number of tokens kept between two replaced ones


class Texts:
    """Recorded outputs in random order, half of them varied, so that they are not mere repeats.

    The datasets take turns in supplying most outputs. So new outputs differ from the evicted ones, and an
    index's mix of states and edges drifts.
    """

    VARIED = 0.5  # share of the outputs with some tokens replaced

    def __init__(self, datasets: list[list[Tokens]]) -> None:
        self._datasets = datasets
        self._every_token = np.concatenate([text for dataset in datasets for text in dataset])
        self._random = np.random.default_rng(0)

    def next(self, progress: float) -> tuple[int, Tokens]:
        """Return a dataset's number and one of its outputs, int32 ``[n]``; progress is from 0 to 1."""
        rng = self._random
        number = int(progress * NUM_ROUNDS * len(self._datasets)) % len(self._datasets)
        if rng.random() >= MAJORITY:
            number = int(rng.integers(len(self._datasets)))
        dataset = self._datasets[number]
        text = dataset[rng.integers(len(dataset))]
        return number, self._varied(text) if rng.random() < self.VARIED else text

    def _varied(self, text: Tokens) -> Tokens:
        """Replace every n-th token by a random one of all datasets, frequent ones more often."""
        varied = text.copy()
        places = slice(None, None, int(self._random.integers(1, MOST_KEPT + 1)) + 1)
        drawn = self._random.integers(len(self._every_token), size=len(varied[places]))
        varied[places] = self._every_token[drawn]
        return varied


def load(directory: Path, dataset_tokens: int) -> list[list[Tokens]]:
    """Return the first recorded outputs of each file as token ids.

    Raises:
        ConfigError: there are no outputs.
    """
    encode = load_tokenizer(TEKKEN)
    files = traces.files(directory)
    datasets = [
        traces.encoded((call["response"] for call in traces.calls(path)), encode, dataset_tokens)
        for path in files
    ]
    found = [dataset for dataset in datasets if dataset]
    if not found:
        raise ConfigError(f"no responses in the traces in {str(directory)!r}")
    return found
