"""A circuit breaker: a failing engine gets no requests for a while, from one tenant or from all."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial


class Circuit:
    """One circuit: closed, open, or half-open.

    A closed circuit lets requests pass, an open one lets none pass for ``open_s``. Then one request may try.
    It closes the circuit if it succeeds, and opens it again if it fails.

    Args:
        num_failures: consecutive failures after which the circuit opens.
        failing_s: least time in seconds that these failures must span. Under load a few bad requests may
            fail in a row by chance, but rarely for a whole second.
        open_s: seconds for which it stays open.
        clock: monotonic clock, in seconds.
    """

    def __init__(
        self, num_failures: int, failing_s: float, open_s: float, clock: Callable[[], float]
    ) -> None:
        self._num_failures = num_failures
        self._failing_s = failing_s
        self._open_s = open_s
        self._clock = clock
        self._first_failed_s: float | None = None  # of those in a row
        self._opens_until: float | None = None
        self._is_trying = False

    @property
    def is_open(self) -> bool:
        """True if no request may pass now."""
        if self._opens_until is None:
            return False
        return self._is_trying or self._clock() < self._opens_until

    @property
    def is_half_open(self) -> bool:
        """True if the open time is over and one request may try, or is trying."""
        return self._opens_until is not None and self._clock() >= self._opens_until

    @property
    def reopens_in_s(self) -> float:
        """Seconds until a request may try; 0 if one may now."""
        return 0.0 if self._opens_until is None else max(0.0, self._opens_until - self._clock())

    def enter(self) -> None:
        """Let one request pass. ``succeed``, ``fail`` or ``forget`` must follow."""
        self._is_trying = self._opens_until is not None

    def succeed(self) -> None:
        """Close the circuit: the engine responded."""
        self._first_failed_s, self._opens_until, self._is_trying = None, None, False

    def fail(self, num_failed: int) -> None:
        """Record a failure, the last of ``num_failed`` in a row."""
        now_s = self._clock()
        if self._first_failed_s is None:
            self._first_failed_s = now_s
        if num_failed >= self._num_failures and now_s - self._first_failed_s >= self._failing_s:
            self.open()
        self._is_trying = False

    def open(self) -> None:
        """Let no request pass for ``open_s``."""
        self._opens_until, self._is_trying = self._clock() + self._open_s, False

    def forget(self) -> None:
        """End a request without judging the engine by it."""
        self._is_trying = False


@dataclass(slots=True)
class _TenantFailures:
    circuit: Circuit
    bodies: set[int] = field(default_factory=set)  # of consecutive failures


class CircuitBreaker:
    """The circuits of one engine: one for all tenants, and one for each tenant with recent failures.

    A failed connection counts against the engine. A request that the engine fails counts against its tenant,
    each body once. If requests of several tenants fail in a row, they count against the engine too. A single
    tenant then contributes at most half of the failures that open the circuit. So no tenant can lock out
    the others.

    Args:
        num_failures, failing_s, open_s, clock: see :class:`Circuit`.
    """

    def __init__(
        self, num_failures: int, failing_s: float, open_s: float, clock: Callable[[], float]
    ) -> None:
        self._num_failures = num_failures
        self._most_of_one = (num_failures + 1) // 2
        self._circuit = partial(Circuit, num_failures, failing_s, open_s, clock)
        self._of_all = self._circuit()
        self._of_tenants: dict[str, _TenantFailures] = {}
        self._num_unreached = 0  # consecutive failed connections
        self._failed: dict[str, set[int]] = defaultdict(set)  # bodies by tenant, since the last success

    @property
    def is_open_to_any(self) -> bool:
        """True if the circuit of all or of at least one tenant is open."""
        return self._of_all.is_open or any(one.circuit.is_open for one in self._of_tenants.values())

    def is_open(self, tenant: str) -> bool:
        """True if no request of ``tenant`` may pass now."""
        return any(circuit.is_open for circuit in self._circuits(tenant))

    def reopens_in_s(self, tenant: str) -> float:
        """Return the seconds until a request of ``tenant`` may try; 0 if one may now."""
        return max(circuit.reopens_in_s for circuit in self._circuits(tenant))

    def enter(self, tenant: str) -> None:
        """Let one request pass. One of the methods below must follow."""
        for circuit in self._circuits(tenant):
            circuit.enter()

    def succeed(self, tenant: str) -> None:
        """Record a response: close the circuits of all and of ``tenant``."""
        self._of_all.succeed()
        self._num_unreached = 0
        self._failed.clear()
        self._of_tenants.pop(tenant, None)

    def fail_to_connect(self) -> None:
        """Record a failed connection, which counts against the engine."""
        self._num_unreached += 1
        self._of_all.fail(self._num_in_a_row)

    def fail(self, tenant: str, body: int) -> None:
        """Record a request that the engine failed or did not answer. ``body`` is a digest."""
        if tenant not in self._of_tenants:
            self._of_tenants[tenant] = _TenantFailures(self._circuit())
        own = self._of_tenants[tenant]
        for bodies in (own.bodies, self._failed[tenant]):
            if len(bodies) < self._num_failures:
                bodies.add(body)
        own.circuit.fail(len(own.bodies))
        if self._of_all.is_half_open:  # still failing for this tenant; a request of another one may try
            own.circuit.open()
            self._of_all.forget()
        else:
            self._of_all.fail(self._num_in_a_row)

    def forget(self, tenant: str) -> None:
        """End a request without judging the engine by it."""
        for circuit in self._circuits(tenant):
            circuit.forget()

    @property
    def _num_in_a_row(self) -> int:
        """Number of consecutive failures that count against the engine."""
        if len(self._failed) < 2:
            return self._num_unreached
        of_tenants = sum(min(len(bodies), self._most_of_one) for bodies in self._failed.values())
        return self._num_unreached + min(of_tenants, len(set().union(*self._failed.values())))

    def _circuits(self, tenant: str) -> tuple[Circuit, ...]:
        own = self._of_tenants.get(tenant)
        return (self._of_all,) if own is None else (self._of_all, own.circuit)
