"""Sessions: the tree of each run of a workflow, its lifetime, and its past on other engines.

Owns names, numbers and times. The owner passes in the functions that make and drop a tree.
"""

from __future__ import annotations

import time
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

SESSION_BYTES = 8
_RECENT_SESSIONS = 4096  # a run has many requests

Tokens = NDArray[np.int32]
SessionKey = tuple[str, bytes]  # tenant, hash of the session's name

# of one session: a request waits until its session's tree has learned them, some 1 ms
MOST_TOKENS = 8192
MOST_OUTPUTS = 64

_PAST_BYTES = 1000  # without its outputs
_OUTPUT_BYTES = 200  # without the tokens


@lru_cache(_RECENT_SESSIONS)
def session_hash(tenant: str, session: str) -> bytes:
    """Return what stands for a tenant's session in the forest and in shared outputs: 8 bytes.

    Two sessions of equal hashes would share a tree, which changes drafts only.
    """
    return blake2b(
        f"{tenant}\0{session}".encode(errors="surrogatepass"),
        digest_size=SESSION_BYTES,
        person=b"agentspec run",
    ).digest()


@dataclass(slots=True)
class _Session:
    index: int
    num_requests: int = 0
    num_bytes: int = 0  # while it is idle


@dataclass(slots=True)
class _Tenant:
    """One tenant's sessions with and without live requests. The first idle one is idle for longest."""

    busy: dict[bytes, _Session] = field(default_factory=dict)
    idle: OrderedDict[bytes, _Session] = field(default_factory=OrderedDict)
    idle_bytes: int = 0


class SessionTable:
    """The trees of all sessions. Not thread-safe. Every call takes O(1), or O(sessions it drops).

    A tenant has at most ``max_sessions`` sessions. Its idle sessions hold at most ``max_idle_bytes``. A
    session is dropped after ``ttl_s`` idle seconds, or earlier to make room for another. ``drop`` is called
    with the index of each dropped session.
    """

    def __init__(
        self, max_sessions: int, max_idle_bytes: int, ttl_s: float, drop: Callable[[int], None]
    ) -> None:
        self._max_sessions = max_sessions
        self._max_idle_bytes = max_idle_bytes
        self._ttl_s = ttl_s
        self._drop = drop
        self._tenants: defaultdict[str, _Tenant] = defaultdict(_Tenant)
        self._idle_since_s: OrderedDict[SessionKey, float] = OrderedDict()  # the longest idle first

    def enter(self, key: SessionKey, create: Callable[[], int]) -> bool:
        """Begin a request in this session. Creates its tree if there is none.

        Returns False if the tenant has ``max_sessions`` sessions and all of them have live requests.
        """
        tenant, name = self._tenants[key[0]], key[1]
        session = tenant.busy.get(name)
        if session is None:
            if len(tenant.busy) >= self._max_sessions:
                return False
            session = tenant.idle.get(name) or _Session(create())
            tenant.busy[name] = session
            if name in tenant.idle:
                self._wake(key)
            elif len(tenant.busy) + len(tenant.idle) > self._max_sessions:
                self._forget((key[0], next(iter(tenant.idle))))
        session.num_requests += 1
        return True

    def leave(self, key: SessionKey, num_bytes: int) -> None:
        """End a request that has entered. ``num_bytes`` is the present size of the tree."""
        tenant, name = self._tenants[key[0]], key[1]
        session = tenant.busy[name]
        session.num_requests -= 1
        if session.num_requests == 0:
            tenant.idle[name] = tenant.busy.pop(name)
            self._idle_since_s[key] = time.monotonic()
            session.num_bytes = num_bytes
            tenant.idle_bytes += num_bytes
            if num_bytes > self._max_idle_bytes:  # no other session is dropped for it
                self._forget(key)
            while tenant.idle_bytes > self._max_idle_bytes:
                self._forget((key[0], next(iter(tenant.idle))))

    def expire(self, most: int) -> None:
        """Drop at most ``most`` expired sessions."""
        expired_s = time.monotonic() - self._ttl_s
        for _ in range(most):
            key = next(iter(self._idle_since_s), None)
            if key is None or self._idle_since_s[key] > expired_s:
                return
            self._forget(key)

    def index(self, key: SessionKey) -> int:
        """Return the tree of a session with live requests."""
        return self._tenants[key[0]].busy[key[1]].index

    def busy(self, key: SessionKey) -> int | None:
        """Return the tree of a session, or None if it has no live requests."""
        tenant = self._tenants.get(key[0])
        session = tenant.busy.get(key[1]) if tenant else None
        return session.index if session else None

    def indices(self, tenant: str | None = None) -> list[int]:
        """Return the trees of all sessions, or of one tenant's."""
        tenants = list(self._tenants.values())
        if tenant is not None:
            tenants = [self._tenants[tenant]] if tenant in self._tenants else []
        return [held.index for one in tenants for held in (*one.busy.values(), *one.idle.values())]

    def empty(self, tenant: str, create: Callable[[], int]) -> None:
        """Drop a tenant's idle sessions, and give those with live requests an empty tree each."""
        held = self._tenants.get(tenant)
        if held is None:
            return
        for name in list(held.idle):
            self._forget((tenant, name))
        for session in held.busy.values():
            dropped, session.index = session.index, create()
            self._drop(dropped)

    def _forget(self, key: SessionKey) -> None:
        self._drop(self._wake(key).index)

    def _wake(self, key: SessionKey) -> _Session:
        tenant = self._tenants[key[0]]
        session = tenant.idle.pop(key[1])
        tenant.idle_bytes -= session.num_bytes
        del self._idle_since_s[key]
        return session


# ---- outputs of sessions that other engines serve ----


@dataclass(slots=True)
class _Past:
    """One session's outputs, the latest last."""

    outputs: deque[Tokens] = field(default_factory=deque)
    num_tokens: int = 0
    last_s: float = 0.0

    @property
    def num_bytes(self) -> int:
        return 4 * self.num_tokens + _OUTPUT_BYTES * len(self.outputs) + _PAST_BYTES

    def add(self, tokens: Tokens) -> None:
        self.outputs.append(tokens)
        self.num_tokens += len(tokens)
        while self.num_tokens > MOST_TOKENS or len(self.outputs) > MOST_OUTPUTS:
            self.num_tokens -= len(self.outputs.popleft())


class SessionPasts:
    """The latest outputs of sessions without a live request. Not thread-safe.

    A call takes O(1), or O(dropped outputs).

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
