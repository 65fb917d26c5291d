"""How much is measured."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sizes:
    """Amounts of work.

    Attributes:
        body_bytes: of a request.
        num_rounds: of latency and throughput, the sides in turns; medians count.
        rate_per_s: requests of the part latency, sent when they are due.
        num_beside: streams that are open meanwhile.
        latency_s: how long they are sent, after ``warm_up_s``.
        num_clients: of the part throughput, each with one request at a time.
        throughput_s: how long they ask.
        num_chunk_streams: whose chunks are counted against processor time.
        num_chunks: of each of them.
        num_held: streams at a time of the part streams.
        held_gap_ms: between two chunks of each.
        held_s: how long each goes on.
        num_leaving: clients that hang up, of each kind.
        soak_minutes: how long the soak goes on.
        soak_warm_up_minutes: of which memory is not judged.
        soak_rate_per_s: its requests.
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
    num_held: int = 1_000
    held_gap_ms: int = 250
    held_s: float = 20.0
    num_leaving: int = 20
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
    num_held=200,
    held_s=4.0,
    num_leaving=5,
    soak_minutes=0.5,
    soak_warm_up_minutes=0.1,
)
