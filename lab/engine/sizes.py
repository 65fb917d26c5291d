"""Size of a measurement."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sizes:
    """Number of measured calls, of earlier calls to learn, of tokens per call at most, and of rounds.

    Attributes:
        minutes: time limit after which no further call starts.
    """

    calls: int = 40
    history: int = 200
    prompt_tokens: int = 1024
    output_tokens: int = 128
    rounds: int = 2
    minutes: float = 10.0


FULL = Sizes()
QUICK = Sizes(calls=6, history=50, prompt_tokens=256, output_tokens=48, rounds=1, minutes=3.0)
