"""Choice of a data-parallel rank of one vLLM for a request.

Each rank has a forest and a prefix cache of its own. So a stage stays with one rank, as in ``routing`` with
one engine. vLLM reads the rank from a header and refuses numbers that it has no rank for.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from agentspec.errors import ConfigError
from agentspec.gateway.upstreams.routing import choose

RANK_HEADER = "x-data-parallel-rank"
SIZE_VARIABLE = "AGENTSPEC_DATA_PARALLEL_SIZE"


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
