"""Live requests without an end, with outputs that are known beforehand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.core.corpus import Corpus
from benchmarks.core.sides import DEPTH, Batch, Tokens

ACCEPTED_TOKENS = 4  # of every request in every step


@dataclass(slots=True)
class Request:
    """A prompt and the output that follows it.

    Attributes:
        text: both, end to end.
        size: number of tokens of the text so far.
    """

    name: str
    prompt: Tokens
    text: Tokens
    size: int

    def advance(self) -> tuple[Tokens, Tokens]:
        """Return the next accepted tokens, and the context that ends with them; restart after the end."""
        if self.size + ACCEPTED_TOKENS > len(self.text):
            self.size = len(self.prompt)
        self.size += ACCEPTED_TOKENS
        return self.text[self.size - ACCEPTED_TOKENS : self.size], self.text[self.size - DEPTH : self.size]


def requests(corpus: Corpus, number: int, num_prompt: int, num_output: int) -> list[Request]:
    """Return requests with stretches of text as prompts: half quote theirs, half produce new text.

    New text begins at another place for each request, so that they do not quote one another.
    """
    found = []
    for i, prompt in enumerate(corpus.prompts(number, num_prompt, seed=2)):
        said = prompt if i % 2 else corpus.outputs
        begin = len(said) * i // number
        output = said.take(np.arange(begin, begin + num_output), mode="wrap")
        text = np.concatenate([prompt, output])
        found.append(Request(f"request-{i}", prompt, text, num_prompt))
    return found


def next_batch(live: Sequence[Request]) -> Batch:
    """Return the next step of all requests."""
    advances = [request.advance() for request in live]
    return Batch(
        [(request.name, new) for request, (new, _) in zip(live, advances, strict=True)],
        [context for _, context in advances],
    )
