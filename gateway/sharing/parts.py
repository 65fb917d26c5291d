"""The part of a limit that one gateway asks for, and the part that it gets."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Wanted:
    """A gateway's request for a part of a key's limits.

    Attributes:
        limit: name of the limit, the same in all gateways.
        holder: who wants it, unique in its gateway.
        num_slots: requests at a time, those it has included.
        num_requests: to start; negative ones are given back.
        requests_per_minute, max_concurrent: None = no limit.
    """

    limit: str
    holder: str
    num_slots: int
    num_requests: int
    requests_per_minute: int | None
    max_concurrent: int | None


@dataclass(frozen=True, slots=True)
class Granted:
    """The store's answer.

    Attributes:
        num_slots: requests at a time, until the next heartbeat.
        num_requests: to start; negative if they were given back.
        wait_s: until there is another one to start.
    """

    num_slots: int
    num_requests: int
    wait_s: float
