"""Choice of an engine for a request.

A stage's tree is warm on the engine that served its earlier requests. So a stage stays with one engine as
long as that one is not busier than the others. The algorithm is consistent hashing with bounded loads
(Mirrokni et al., arXiv 1608.01350) over rendezvous hashing. Requests that spill are sent to the stage's
second engine, which is always the same, then to its third, and so on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from hashlib import blake2b
from typing import Protocol, TypeVar


class Target(Protocol):
    """An engine that a request can be sent to."""

    @property
    def name(self) -> str:
        """Name that determines which stages are routed here; stable over restarts."""

    @property
    def weight(self) -> float:
        """Share of the load."""

    @property
    def num_running(self) -> int:
        """Number of requests in flight."""


AnyTarget = TypeVar("AnyTarget", bound=Target)


def choose(targets: Sequence[AnyTarget], affinity: str | None, spill: float) -> AnyTarget:
    """Return the one of ``targets`` (at least one) for the next request.

    Args:
        affinity: key of requests that should stay together; None = choose the least loaded target.
        spill: factor by which a target may exceed its share of the load before others are used, at least 1.
    """
    if affinity is None or len(targets) == 1:
        return min(targets, key=_load)
    num_running = 1 + sum(target.num_running for target in targets)
    total_weight = sum(target.weight for target in targets)
    for target in sorted(targets, key=lambda one: _score(one, affinity), reverse=True):
        if target.num_running < math.ceil(spill * num_running * target.weight / total_weight):
            return target
    return min(targets, key=_load)  # reached only by rounding


def _load(target: Target) -> float:
    return (target.num_running + 1) / target.weight


def _score(target: Target, affinity: str) -> float:
    """Return the score of weighted rendezvous hashing: the highest wins, in proportion to the weights."""
    digest = blake2b(f"{target.name}\0{affinity}".encode(), digest_size=8).digest()
    chance = (int.from_bytes(digest) + 1) / (2**64 + 1)
    return -target.weight / math.log(chance)
