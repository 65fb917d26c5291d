"""Sizes of the full and the quick fleet benchmark."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sizes:
    """Amounts of work.

    Attributes:
        num_processes: processes that share the recorded sets.
        num_replicas: sizes of the simulated fleets; one engine is simulated as well.
        num_sessions: sessions that run at the same time in a simulated fleet.
        gain_calls: calls of each set in the part gain.
        windows_s: other times between two batches of a replica, for the largest fleet.
        publish_rate_per_s: outputs of the measured engine in a second, in the part publish.
        publish_s: duration of each load in all.
        publish_rounds: in which the loads take turns.
        join_tokens: least tokens in the store that is joined.
        join_calls: calls of each set in that store; None = one half of all.
        join_warm_calls: of these, calls that the warm engine answered; it was given the others.
        outage_s: duration of each fault.
        costs_calls: calls of each set in the part costs.
    """

    num_processes: int = 2
    num_replicas: tuple[int, ...] = (4, 16)
    num_sessions: int = 16
    gain_calls: int = 1_000
    windows_s: tuple[float, ...] = (1.0, 10.0)
    publish_rate_per_s: float = 50.0
    publish_s: float = 40.0
    publish_rounds: int = 5
    join_tokens: int = 2_000_000
    join_calls: int | None = None
    join_warm_calls: int = 500
    outage_s: float = 30.0
    costs_calls: int = 1_000


FULL = Sizes()
QUICK = Sizes(
    gain_calls=60,
    windows_s=(),
    publish_s=4.0,
    publish_rounds=1,
    join_tokens=200_000,
    join_calls=200,
    join_warm_calls=50,
    outage_s=3.0,
    costs_calls=60,
)
