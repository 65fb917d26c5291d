"""The past of sessions that other engines have served: their outputs, until a request of theirs is here."""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from agentspec.forest.sessions import SessionKey

Tokens = NDArray[np.int32]

# of one session: a request waits until its session's tree has learned them, some 1 ms
MOST_TOKENS = 8192
MOST_OUTPUTS = 64

_SESSION_BYTES = 1000  # beside its outputs
_OUTPUT_BYTES = 200  # beside the tokens


@dataclass(slots=True)
class _Past:
    """One session's outputs, the latest last."""

    outputs: deque[Tokens] = field(default_factory=deque)
    num_tokens: int = 0
    last_s: float = 0.0

    @property
    def num_bytes(self) -> int:
        return 4 * self.num_tokens + _OUTPUT_BYTES * len(self.outputs) + _SESSION_BYTES

    def add(self, tokens: Tokens) -> None:
        self.outputs.append(tokens)
        self.num_tokens += len(tokens)
        while self.num_tokens > MOST_TOKENS or len(self.outputs) > MOST_OUTPUTS:
            self.num_tokens -= len(self.outputs.popleft())


class SessionPasts:
    """The latest outputs of sessions without a live request. Not thread-safe.

    A call takes O(1), or O(what it drops).

    Args:
        most_bytes: of all tenants. Beyond it, the session without a new output for longest is dropped.
        ttl_s: seconds without a new output after which a session is dropped.
        clock: monotonic seconds.

    Attributes:
        num_bytes: bytes in use, estimated.
    """

    def __init__(self, most_bytes: int, ttl_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._most_bytes = most_bytes
        self._ttl_s = ttl_s
        self._clock = clock
        self._pasts: OrderedDict[SessionKey, _Past] = OrderedDict()  # by the time of the last output
        self.num_bytes = 0

    def __contains__(self, key: SessionKey) -> bool:
        return key in self._pasts

    def add(self, key: SessionKey, tokens: Tokens) -> None:
        """Add an output. Of a session, the latest stay; an empty or too long output is not added."""
        if not 1 <= len(tokens) <= MOST_TOKENS:
            return
        past = self._pasts.pop(key, None)
        if past is None:
            past = _Past()
        else:
            self.num_bytes -= past.num_bytes
        past.add(tokens)
        past.last_s = self._clock()
        self._pasts[key] = past
        self.num_bytes += past.num_bytes
        self.drop_old()

    def take(self, key: SessionKey) -> list[Tokens]:
        """Remove and return the outputs of a session, the latest last."""
        self.drop_old()
        return list(self._drop(key).outputs) if key in self._pasts else []

    def drop_tenant(self, tenant: str) -> None:
        """Drop all sessions of a tenant. O(sessions)."""
        for key in [key for key in self._pasts if key[0] == tenant]:
            self._drop(key)

    def drop_old(self) -> None:
        """Drop the sessions that are too old, or too many."""
        oldest_s = self._clock() - self._ttl_s
        while self._pasts:
            key, past = next(iter(self._pasts.items()))
            if past.last_s >= oldest_s and self.num_bytes <= self._most_bytes:
                return
            self._drop(key)

    def outputs(self, tenant: str) -> list[Tokens]:
        """Return all outputs of a tenant."""
        return [one for key, past in self._pasts.items() if key[0] == tenant for one in past.outputs]

    def _drop(self, key: SessionKey) -> _Past:
        past = self._pasts.pop(key)
        self.num_bytes -= past.num_bytes
        return past
