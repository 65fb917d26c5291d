"""Prometheus metrics per engine: load, health, requests, failures and latency, and those of its corpus."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.utils import floatToGoString

LABELS = ["upstream"]
FIRST_BYTE_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


@dataclass(slots=True)
class UpstreamMetrics:
    """Counters of one engine, which only grow. Not thread-safe: used in the event loop only.

    Attributes:
        num_requests: number of tries sent to the engine.
        num_failures: number of tries that it did not answer, or answered with a failure of its own.
        num_retries: number of tries after a failed one, on this or another engine.
        first_byte_s: sum of the times until the head of a response, in seconds.
        num_by_bucket: number of responses per bucket of that time; the last bucket has no upper bound.
    """

    num_requests: int = 0
    num_failures: int = 0
    num_retries: int = 0
    first_byte_s: float = 0.0
    num_by_bucket: list[int] = field(default_factory=lambda: [0] * (len(FIRST_BYTE_BUCKETS_S) + 1))

    def add_first_byte(self, seconds: float) -> None:
        """Record the time until the head of one response."""
        self.first_byte_s += seconds
        self.num_by_bucket[bisect_left(FIRST_BYTE_BUCKETS_S, seconds)] += 1


class Observable(Protocol):
    """An engine whose metrics are exported."""

    name: str
    num_running: int
    is_up: bool
    figures: UpstreamMetrics

    @property
    def is_ejected(self) -> bool:
        """True if its circuit breaker is open to at least one tenant."""

    @property
    def stats_age_s(self) -> float:
        """Seconds since the moment that its counters per stage describe."""


GAUGES = (
    ("agentspec_upstream_running", "num_running", "Requests that the engine answers now"),
    ("agentspec_upstream_up", "is_up", "0 after health.num_failed_looks failed probes in a row"),
    (
        "agentspec_upstream_breaker_open",
        "is_ejected",
        "1 while the engine gets no request, of one tenant or of all, after failures",
    ),
    (
        "agentspec_upstream_stats_age_seconds",
        "stats_age_s",
        "Age of the engine's counters per stage, which it sends between two steps",
    ),
)
COUNTERS = (
    ("agentspec_upstream_requests", "num_requests", "Requests sent to the engine, retries included"),
    ("agentspec_upstream_failures", "num_failures", "Those that it did not answer, or failed itself"),
    ("agentspec_upstream_retries", "num_retries", "Those that had failed before, here or on another engine"),
)
CORPUS_COUNTERS = (
    (
        "agentspec_corpus_published_outputs",
        "num_published",
        "Finished outputs that were sent to other engines",
    ),
    ("agentspec_corpus_duplicate_outputs", "num_duplicates", "Those that are known, sent as counts"),
    ("agentspec_corpus_skipped_outputs", "num_skipped", "Those that shared trees had drafted: not sent"),
    (
        "agentspec_corpus_dropped_outputs",
        "num_dropped",
        "Those without room in the queue, or that could not be sent",
    ),
    ("agentspec_corpus_published_bytes", "num_published_bytes", "Bytes sent"),
    ("agentspec_corpus_model_updates", "num_model_updates", "Updates of acceptance models that were sent"),
    ("agentspec_corpus_model_update_bytes", "num_model_update_bytes", "Their part of the bytes"),
    ("agentspec_corpus_learned_outputs", "num_learned", "Outputs of other engines that the trees learned"),
    ("agentspec_corpus_learned_tokens", "num_learned_tokens", "Their tokens"),
    ("agentspec_corpus_merged_updates", "num_merged_updates", "Updates of other engines' models learned"),
    (
        "agentspec_corpus_dropped_records",
        "num_dropped_records",
        "Records that were skipped: learning was too slow",
    ),
    ("agentspec_corpus_damaged", "num_damaged", "Batches and outputs that can't be used"),
    ("agentspec_corpus_unknown_counts", "num_unknown", "Counts of outputs that are not remembered here"),
    ("agentspec_corpus_learning_cpu_seconds", "learning_cpu_s", "CPU time of learning"),
    ("agentspec_corpus_snapshots", "num_snapshots", "Snapshots written"),
    ("agentspec_corpus_store_failures", "num_store_failures", "Calls of the store that failed"),
)
CORPUS_GAUGES = (
    ("agentspec_corpus_missing_records", "num_missing_records", "Records that have not arrived"),
    ("agentspec_corpus_lag_seconds", "lag_s", "How long the oldest entry that is not learned has been known"),
    ("agentspec_corpus_memory_bytes", "memory_bytes", "Bytes of outputs remembered"),
)


def corpus_metrics(figures: Mapping[str, Mapping[str, float]]) -> Iterator[Metric]:
    """Yield the metric families of corpora. ``figures`` are by engine and name; missing ones are left out."""
    for name, key, text in CORPUS_COUNTERS:
        counter = CounterMetricFamily(name, text, labels=LABELS)
        for engine, of_engine in figures.items():
            if key in of_engine:
                counter.add_metric([engine], of_engine[key])
        yield counter
    for name, key, text in CORPUS_GAUGES:
        gauge = GaugeMetricFamily(name, text, labels=LABELS)
        for engine, of_engine in figures.items():
            if key in of_engine:
                gauge.add_metric([engine], of_engine[key])
        yield gauge


def upstream_metrics(upstreams: Sequence[Observable], num_waiting: int) -> Iterator[Metric]:
    """Yield all metric families of a fleet, which has ``num_waiting`` requests in its admission queue."""
    yield GaugeMetricFamily(
        "agentspec_gateway_waiting", "Requests in line for an engine that has room", value=num_waiting
    )
    for name, attribute, text in GAUGES:
        gauge = GaugeMetricFamily(name, text, labels=LABELS)
        for one in upstreams:
            gauge.add_metric([one.name], float(getattr(one, attribute)))
        yield gauge
    yield from request_metrics({one.name: one.figures for one in upstreams})


def request_metrics(figures: Mapping[str, UpstreamMetrics]) -> Iterator[Metric]:
    """Yield the metric families of the requests sent to engines. ``figures`` are by the engine's name."""
    for name, attribute, text in COUNTERS:
        counter = CounterMetricFamily(name, text, labels=LABELS)
        for engine, of_engine in figures.items():
            counter.add_metric([engine], getattr(of_engine, attribute))
        yield counter
    yield _first_bytes(figures)


def _first_bytes(figures: Mapping[str, UpstreamMetrics]) -> Metric:
    family = HistogramMetricFamily(
        "agentspec_upstream_first_byte_seconds",
        "Time from sending a request to the head of its answer",
        labels=LABELS,
    )
    bounds = [*map(floatToGoString, FIRST_BYTE_BUCKETS_S), "+Inf"]
    for engine, of_engine in figures.items():
        so_far, buckets = 0, []
        for bound, num in zip(bounds, of_engine.num_by_bucket, strict=True):
            so_far += num
            buckets.append((bound, float(so_far)))
        family.add_metric([engine], buckets, of_engine.first_byte_s)
    return family
