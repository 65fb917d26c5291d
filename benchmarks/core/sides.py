"""The sides that are measured: one interface, with an implementation for us and one for each peer.

Every side follows the same rule. Contexts have at most ``DEPTH`` tokens. A draft ends at the length of its
match (factor 1), at ``MAX_DRAFT`` tokens, or where the estimated probability falls below ``MIN_PROB``.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from agentspec.errors import ConfigError

Tokens = NDArray[np.int32]

DEPTH = 64
MAX_DRAFT = 32
FACTOR = 1.0
MIN_PROB = 0.1


@dataclass(frozen=True, slots=True)
class Batch:
    """One decode step's input, ready for either side.

    Attributes:
        updates: (request, its newly accepted tokens).
        contexts: the last ``DEPTH`` tokens of each request, the new ones included.
    """

    updates: list[tuple[str, Tokens]]
    contexts: list[Tokens]


class Index(Protocol):
    """One tree of many documents."""

    def add(self, document: Tokens) -> None:
        """Add a whole document."""

    def evict(self, num_tokens: int) -> int:
        """Evict the oldest documents, at least ``num_tokens`` tokens or all; return the number evicted."""


class Draft(Protocol):
    """A draft of either side, each in its own class."""

    @property
    def token_ids(self) -> Collection[int]:
        """The draft's tokens."""


class Decoder(Protocol):
    """An engine's interface: live requests with a tree each, and a tree of all outputs."""

    def learn(self, output: Tokens) -> None:
        """Add a past output to the tree of outputs."""

    def start(self, request: str, prompt: Tokens) -> None:
        """Admit a request and index its prompt."""

    def step(self, batch: Batch) -> Sequence[Draft]:
        """Take the accepted tokens, then draft for each request."""

    def finish(self, request: str) -> None:
        """Forget a request and its output."""


@dataclass(frozen=True, slots=True)
class Side:
    """One implementation; the types are constructed without arguments, also in other processes."""

    version: str
    index: type[Index]
    decoder: type[Decoder]


def our_side() -> Side:
    """Return the code of this repository."""
    from agentspec import __version__
    from benchmarks.core.ours import OurDecoder, OurIndex

    return Side(f"agentspec {__version__}", OurIndex, OurDecoder)


def peer_side(name: str) -> Side:
    """Return the peer with this name.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        from benchmarks.core.arctic import VERSION, ArcticDecoder, ArcticIndex
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "arctic_inference":
            raise
        raise ConfigError(
            f"peer {name!r} is not installed: `make bench-peer` builds it into .venv (elsewhere: pip install "
            "nanobind==2.9.2 grpcio-tools cmake ninja wheel setuptools torch, then pip install "
            "--no-build-isolation --no-deps arctic-inference==0.3.0)"
        ) from None
    return Side(f"arctic-inference {VERSION}", ArcticIndex, ArcticDecoder)
