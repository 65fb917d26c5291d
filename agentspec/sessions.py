"""Sessions: which tree a run of a workflow has, and for how long.

Owns names, numbers and times. Knows nothing of tokens; what makes and drops a tree is handed in.
"""

from __future__ import annotations

import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

SessionKey = tuple[str, str]  # tenant, session


@dataclass(slots=True)
class _Session:
    index: int
    num_requests: int = 0
    num_bytes: int = 0  # while it is idle


@dataclass(slots=True)
class _Tenant:
    """One tenant's sessions: with and without live requests; of the latter the one idle longest is first."""

    busy: dict[str, _Session] = field(default_factory=dict)
    idle: OrderedDict[str, _Session] = field(default_factory=OrderedDict)
    idle_bytes: int = 0


class SessionTable:
    """The trees of all sessions. Not thread-safe. Every call takes O(1), or O(sessions it drops).

    A tenant has at most ``max_sessions``, of which the idle ones hold at most ``max_idle_bytes``; a session
    goes when it was idle for ``ttl_s`` seconds, or earlier to make place for another. ``drop`` is called with
    the index of each that goes.
    """

    def __init__(
        self, max_sessions: int, max_idle_bytes: int, ttl_s: float, drop: Callable[[int], None]
    ) -> None:
        self._max_sessions = max_sessions
        self._max_idle_bytes = max_idle_bytes
        self._ttl_s = ttl_s
        self._drop = drop
        self._tenants: defaultdict[str, _Tenant] = defaultdict(_Tenant)
        self._idle_since_s: OrderedDict[SessionKey, float] = OrderedDict()  # the longest first

    def enter(self, key: SessionKey, create: Callable[[], int]) -> bool:
        """A request begins in this session, whose tree is made if there is none.

        False if the tenant has as many sessions as it may have, and requests are live in all of them.
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
        """A request that has entered ends; so many bytes the tree takes."""
        tenant, name = self._tenants[key[0]], key[1]
        session = tenant.busy[name]
        session.num_requests -= 1
        if session.num_requests == 0:
            tenant.idle[name] = tenant.busy.pop(name)
            self._idle_since_s[key] = time.monotonic()
            session.num_bytes = num_bytes
            tenant.idle_bytes += num_bytes
            if num_bytes > self._max_idle_bytes:  # nobody else has to go for that
                self._forget(key)
            while tenant.idle_bytes > self._max_idle_bytes:
                self._forget((key[0], next(iter(tenant.idle))))

    def expire(self, most: int) -> None:
        """Drop at most so many sessions that were idle for too long."""
        expired_s = time.monotonic() - self._ttl_s
        for _ in range(most):
            key = next(iter(self._idle_since_s), None)
            if key is None or self._idle_since_s[key] > expired_s:
                return
            self._forget(key)

    def index(self, key: SessionKey) -> int:
        """The tree of a session that a request is in."""
        return self._tenants[key[0]].busy[key[1]].index

    def indices(self) -> list[int]:
        """Every session's tree."""
        tenants = self._tenants.values()
        return [held.index for tenant in tenants for held in (*tenant.busy.values(), *tenant.idle.values())]

    def _forget(self, key: SessionKey) -> None:
        self._drop(self._wake(key).index)

    def _wake(self, key: SessionKey) -> _Session:
        tenant = self._tenants[key[0]]
        session = tenant.idle.pop(key[1])
        tenant.idle_bytes -= session.num_bytes
        del self._idle_since_s[key]
        return session
