"""Which of several engines a request goes to.

A stage's tree is warm where its requests were before, so a stage stays with one engine as long as that one
is not busier than the others: consistent hashing with bounded loads (Mirrokni et al., arXiv 1608.01350) over
rendezvous hashing. What spills goes to the stage's second engine, always the same one, and so on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from hashlib import blake2b
from typing import Protocol, TypeVar


class Target(Protocol):
    """What a request can be sent to."""

    @property
    def name(self) -> str:
        """Stable over restarts: it decides which stages come here."""

    @property
    def weight(self) -> float:
        """Its share of the load."""

    @property
    def num_running(self) -> int:
        """Requests that it answers now."""


AnyTarget = TypeVar("AnyTarget", bound=Target)


def choose(targets: Sequence[AnyTarget], affinity: str | None, spill: float) -> AnyTarget:
    """The one of ``targets`` (at least one) for the next request.

    Args:
        affinity: what should stay together; None = nothing: the least loaded.
        spill: a target takes at most so many times its share of the load before others must help, at least 1.
    """
    if affinity is None or len(targets) == 1:
        return min(targets, key=_load)
    num_running = 1 + sum(target.num_running for target in targets)
    total_weight = sum(target.weight for target in targets)
    for target in sorted(targets, key=lambda one: _score(one, affinity), reverse=True):
        if target.num_running < math.ceil(spill * num_running * target.weight / total_weight):
            return target
    return min(targets, key=_load)  # rounding


def _load(target: Target) -> float:
    return (target.num_running + 1) / target.weight


def _score(target: Target, affinity: str) -> float:
    """Highest wins: each target is the first of its share of all affinities (weighted rendezvous hashing)."""
    digest = blake2b(f"{target.name}\0{affinity}".encode(), digest_size=8).digest()
    chance = (int.from_bytes(digest) + 1) / (2**64 + 1)
    return -target.weight / math.log(chance)
