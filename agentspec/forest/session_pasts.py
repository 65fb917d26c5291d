"""The past of sessions that other engines have served: their outputs, until the session gets a tree here."""

from __future__ import annotations

import time
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from agentspec.forest.sessions import SessionKey

Tokens = NDArray[np.int32]

MOST_TOKENS = 8192  # of one session: the request that makes its tree waits until it has learned them
_OUTPUT_BYTES = 200  # beside the tokens


@dataclass(slots=True)
class _Past:
    """One session's outputs, the latest last."""

    outputs: deque[Tokens] = field(default_factory=deque)
    num_tokens: int = 0
    last_s: float = 0.0

    @property
    def num_bytes(self) -> int:
        return 4 * self.num_tokens + _OUTPUT_BYTES * len(self.outputs)


@dataclass(slots=True)
class _Tenant:
    """One tenant's sessions, the one without a new output for longest first."""

    pasts: OrderedDict[bytes, _Past] = field(default_factory=OrderedDict)
    num_bytes: int = 0


class SessionPasts:
    """The latest outputs of sessions without a tree. Not thread-safe. Every call takes O(what it drops).

    Args:
        most_bytes: of one tenant. Beyond it, the session without a new output for longest is dropped.
        ttl_s: seconds without a new output after which a session is dropped.
        clock: monotonic seconds.
    """

    def __init__(self, most_bytes: int, ttl_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._most_bytes = most_bytes
        self._ttl_s = ttl_s
        self._clock = clock
        self._tenants: defaultdict[str, _Tenant] = defaultdict(_Tenant)

    def add(self, key: SessionKey, tokens: Tokens) -> None:
        """Add an output. Of a session, the latest ``MOST_TOKENS`` stay; a longer output is not added."""
        if len(tokens) > MOST_TOKENS:
            return
        tenant = self._tenants[key[0]]
        past = tenant.pasts.setdefault(key[1], _Past())
        tenant.num_bytes -= past.num_bytes
        past.outputs.append(tokens)
        past.num_tokens += len(tokens)
        while past.num_tokens > MOST_TOKENS:
            past.num_tokens -= len(past.outputs.popleft())
        past.last_s = self._clock()
        tenant.num_bytes += past.num_bytes
        tenant.pasts.move_to_end(key[1])
        self._drop_old(key[0])

    def take(self, key: SessionKey) -> list[Tokens]:
        """Remove and return the outputs of a session, the latest last."""
        if key[0] not in self._tenants:
            return []
        self._drop_old(key[0])
        tenant = self._tenants[key[0]]
        past = tenant.pasts.pop(key[1], _Past())
        tenant.num_bytes -= past.num_bytes
        return list(past.outputs)

    def drop_tenant(self, tenant: str) -> None:
        """Drop all sessions of a tenant."""
        self._tenants.pop(tenant, None)

    def _drop_old(self, name: str) -> None:
        tenant = self._tenants[name]
        oldest_s = self._clock() - self._ttl_s
        while tenant.pasts:
            past = next(iter(tenant.pasts.values()))
            if past.last_s >= oldest_s and tenant.num_bytes <= self._most_bytes:
                return
            tenant.num_bytes -= past.num_bytes
            tenant.pasts.popitem(last=False)
