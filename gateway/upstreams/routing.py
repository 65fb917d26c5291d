"""Choice of an engine for a request, and of a data-parallel rank of one engine.

A stage's tree is warm on the engine that served its earlier requests. So a stage stays with one engine as
long as that one is not busier than the others. The algorithm is consistent hashing with bounded loads
(Mirrokni et al., arXiv 1608.01350) over rendezvous hashing. Requests that spill are sent to the stage's
second engine, which is always the same, then to its third, and so on. Each rank of a vLLM has a forest and a
prefix cache of its own, so a stage stays with one rank as well.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from typing import Protocol, TypeVar

from agentspec.errors import ConfigError
from agentspec.gateway.call import ApiCall
from agentspec.gateway.settings import Policy, RoutingSettings

_DIGEST_BYTES = 16
RANK_HEADER = "x-data-parallel-rank"
SIZE_VARIABLE = "AGENTSPEC_DATA_PARALLEL_SIZE"


def affinity_of(call: ApiCall, policy: Policy) -> str | None:
    """Return what a call has in common with those that belong to the same engine; None = nothing."""
    if call.tags is None or policy is Policy.LEAST_LOAD:
        return None
    if policy is Policy.SESSION and call.tags.session:
        return f"{call.tenant}\0{call.tags.session}"
    return str(call.tags.stage)


def affinity_header(call: ApiCall, routing: RoutingSettings) -> str | None:
    """Return the value of ``X-AgentSpec-Affinity`` for a router; None = the call may go to any engine.

    It is a keyed hash of the model and the affinity, 32 hexadecimal digits: no name of a tenant, stage or
    session is in it. Gateways with equal keys send equal values.
    """
    affinity = affinity_of(call, routing.policy)
    if affinity is None:
        return None
    key = blake2b(routing.affinity_key.encode()).digest()
    content = f"{call.model or ''}\0{affinity}".encode()
    return blake2b(content, key=key, digest_size=_DIGEST_BYTES).hexdigest()


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


@dataclass(slots=True)
class Rank:
    """A target of ``routing``."""

    name: str
    weight: float = 1.0
    num_running: int = 0


class DataParallelRanks:
    """The ranks of one engine and their load by requests of this process."""

    def __init__(self, num_ranks: int) -> None:
        self._ranks = [Rank(str(number)) for number in range(num_ranks)]

    @classmethod
    def from_environment(cls) -> DataParallelRanks:
        """Return as many ranks as ``$AGENTSPEC_DATA_PARALLEL_SIZE`` names, 1 by default.

        Raises:
            ConfigError: it is not a number from 1 on.
        """
        given = os.environ.get(SIZE_VARIABLE, "1")
        if not given.isdecimal() or int(given) < 1:
            raise ConfigError(f"${SIZE_VARIABLE} is the number of vLLM's ranks, from 1 on, not {given!r}")
        return cls(int(given))

    @contextmanager
    def entered(self, affinity: str | None, given: str | None, spill: float) -> Iterator[str | None]:
        """Choose a rank for a request, and count the request there until the block ends.

        Args:
            affinity: key of requests that should stay together; None = vLLM chooses.
            given: value of the client's own header. It prevails.
            spill: see :func:`choose`.

        Yields:
            The value of the header to add; None = leave the request as it is.
        """
        rank = self._rank(affinity, given, spill)
        if rank is None:
            yield None
            return
        rank.num_running += 1
        try:
            yield rank.name if given is None else None
        finally:
            rank.num_running -= 1

    def _rank(self, affinity: str | None, given: str | None, spill: float) -> Rank | None:
        if given is not None:
            return next((rank for rank in self._ranks if rank.name == given.strip()), None)
        if affinity is None or len(self._ranks) < 2:
            return None
        return choose(self._ranks, affinity, spill)
