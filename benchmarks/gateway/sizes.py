"""Sizes of the full and the quick gateway benchmark."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sizes:
    """Amounts of work.

    Attributes:
        body_bytes: size of a request's body.
        num_rounds: rounds of latency and throughput, the sides in turn; the results are medians.
        rate_per_s: requests per second in latency, sent when they are due.
        num_beside: streams open during latency.
        latency_s: measured duration of a latency round, after ``warm_up_s``.
        num_clients: clients in throughput, each with one request at a time.
        throughput_s: duration of a throughput round.
        num_chunk_streams: streams for the processor time per chunk.
        num_chunks: chunks of each of those streams.
        soak_minutes: duration of the soak.
        soak_warm_up_minutes: first part of the soak, in which memory does not count.
        soak_rate_per_s: requests per second in the soak.
    """

    body_bytes: int = 6_144
    num_rounds: int = 5
    rate_per_s: int = 100
    num_beside: int = 64
    latency_s: float = 10.0
    warm_up_s: float = 2.0
    num_clients: int = 16
    throughput_s: float = 5.0
    num_chunk_streams: int = 64
    num_chunks: int = 200
    soak_minutes: float = 30.0
    soak_warm_up_minutes: float = 5.0
    soak_rate_per_s: int = 40


FULL = Sizes()
QUICK = Sizes(
    num_rounds=2,
    latency_s=3.0,
    warm_up_s=1.0,
    throughput_s=2.0,
    num_chunks=50,
    soak_minutes=0.5,
    soak_warm_up_minutes=0.1,
)
