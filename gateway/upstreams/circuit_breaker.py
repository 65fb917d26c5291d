"""A circuit breaker: an engine that keeps failing is left alone for a while, by one tenant or by all."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial


class Circuit:
    """Closed: requests pass. Open: none for ``open_s``. Then one tries: it closes the circuit, or fails and
    opens it again.

    Args:
        num_failures, failing_s: it opens after so many in a row, if nothing else came for so many seconds.
            Under load a handful that can't but fail come in a row by chance; a second of them does not.
        clock: seconds, monotonic.
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
        """No request may pass now."""
        if self._opens_until is None:
            return False
        return self._is_trying or self._clock() < self._opens_until

    @property
    def is_half_open(self) -> bool:
        """It was open, and a request may try, or does."""
        return self._opens_until is not None and self._clock() >= self._opens_until

    @property
    def reopens_in_s(self) -> float:
        """Seconds until one may try; 0 if one may now."""
        return 0.0 if self._opens_until is None else max(0.0, self._opens_until - self._clock())

    def enter(self) -> None:
        """A request goes through; ``succeed``, ``fail`` or ``forget`` tells how it went."""
        self._is_trying = self._opens_until is not None

    def succeed(self) -> None:
        """It was answered."""
        self._first_failed_s, self._opens_until, self._is_trying = None, None, False

    def fail(self, num_failed: int) -> None:
        """It failed, as the last of ``num_failed`` in a row."""
        now_s = self._clock()
        if self._first_failed_s is None:
            self._first_failed_s = now_s
        if num_failed >= self._num_failures and now_s - self._first_failed_s >= self._failing_s:
            self.open()
        self._is_trying = False

    def open(self) -> None:
        """None may pass from now on."""
        self._opens_until, self._is_trying = self._clock() + self._open_s, False

    def forget(self) -> None:
        """It says nothing of the engine, or nothing new."""
        self._is_trying = False


@dataclass(slots=True)
class _TenantFailures:
    circuit: Circuit
    bodies: set[int] = field(default_factory=set)  # those that failed in a row


class CircuitBreaker:
    """The circuits of one engine: one for all, and one for each tenant whose requests fail.

    That an engine can't be reached counts against the engine. A request that it fails counts against the
    request's tenant, each body once. It counts against the engine too if several tenants' requests fail in a
    row, but no tenant for more than half of what opens the circuit. So no tenant keeps the others out.

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
        self._num_unreached = 0  # in a row, and
        self._failed: dict[str, set[int]] = defaultdict(set)  # bodies by tenant, since anything was answered

    @property
    def is_open_to_any(self) -> bool:
        """There are tenants to which it is open: they get nothing."""
        return self._of_all.is_open or any(one.circuit.is_open for one in self._of_tenants.values())

    def is_open(self, tenant: str) -> bool:
        """No request of ``tenant`` may pass now."""
        return any(circuit.is_open for circuit in self._circuits(tenant))

    def reopens_in_s(self, tenant: str) -> float:
        """Seconds until one of ``tenant`` may try; 0 if one may now."""
        return max(circuit.reopens_in_s for circuit in self._circuits(tenant))

    def enter(self, tenant: str) -> None:
        """A request goes through; one of the methods below tells how it went."""
        for circuit in self._circuits(tenant):
            circuit.enter()

    def succeed(self, tenant: str) -> None:
        """It was answered."""
        self._of_all.succeed()
        self._num_unreached = 0
        self._failed.clear()
        self._of_tenants.pop(tenant, None)

    def fail_to_connect(self) -> None:
        """The engine can't be reached, whoever asks."""
        self._num_unreached += 1
        self._of_all.fail(self._num_in_a_row)

    def fail(self, tenant: str, body: int) -> None:
        """The engine failed it, or did not answer. ``body``: a digest."""
        if tenant not in self._of_tenants:
            self._of_tenants[tenant] = _TenantFailures(self._circuit())
        own = self._of_tenants[tenant]
        for bodies in (own.bodies, self._failed[tenant]):
            if len(bodies) < self._num_failures:
                bodies.add(body)
        own.circuit.fail(len(own.bodies))
        if self._of_all.is_half_open:  # the engine is still out of order for this tenant; another one may try
            own.circuit.open()
            self._of_all.forget()
        else:
            self._of_all.fail(self._num_in_a_row)

    def forget(self, tenant: str) -> None:
        """It says nothing of the engine, or nothing new."""
        for circuit in self._circuits(tenant):
            circuit.forget()

    @property
    def _num_in_a_row(self) -> int:
        """Failures that count against the engine."""
        if len(self._failed) < 2:
            return self._num_unreached
        of_tenants = sum(min(len(bodies), self._most_of_one) for bodies in self._failed.values())
        return self._num_unreached + min(of_tenants, len(set().union(*self._failed.values())))

    def _circuits(self, tenant: str) -> tuple[Circuit, ...]:
        own = self._of_tenants.get(tenant)
        return (self._of_all,) if own is None else (self._of_all, own.circuit)
