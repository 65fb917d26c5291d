"""Prometheus metrics of stages, of engines and the requests sent to them, and of corpora."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from agentspec.draft import reported
from agentspec.stages import StageKey
from agentspec.stats import OTHER_STAGE, StageStats

Table = Sequence[tuple[str, str, str]]  # name, where its value is, help
Rows = Mapping[tuple[str, ...], Any]  # what holds the values, by the values of the labels

STAGE_LABELS = ["tenant", "stage"]
UPSTREAM_LABELS = ["upstream"]
FIRST_BYTE_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)

STAGE_COUNTERS: Table = (
    ("agentspec_requests", "num_requests", "Requests"),
    ("agentspec_prompt_tokens", "num_prompt_tokens", "Prompt tokens"),
    ("agentspec_output_tokens", "num_output_tokens", "Output tokens"),
    ("agentspec_decode_steps", "num_steps", "Decode steps, counted once per request that took part"),
    ("agentspec_drafts", "num_drafts", "Drafts that were verified"),
    ("agentspec_draft_tokens", "num_draft_tokens", "Draft tokens that were verified"),
    ("agentspec_accepted_tokens", "num_accepted_tokens", "Draft tokens that were accepted"),
    (
        "agentspec_accepted_tokens_from_fleet",
        "num_accepted_from_fleet",
        "Accepted tokens that only outputs of other engines had taught",
    ),
    (
        "agentspec_accepted_tokens_from_snapshot",
        "num_accepted_from_snapshot",
        "Accepted tokens that only the snapshot of a corpus had taught",
    ),
    ("agentspec_decode_seconds", "decode_s", "Time from first to last output token, summed over requests"),
    (
        "agentspec_measured_decode_seconds",
        "measured_decode_s",
        "Decode time, summed over requests, in steps for which the time without drafts is known",
    ),
    (
        "agentspec_plain_decode_seconds",
        "plain_decode_s",
        "Estimated time of the measured decode steps without drafts, summed over requests",
    ),
)
SOURCE_COUNTERS: Table = (
    ("agentspec_draft_tokens_by_source", "drafted_by_source", "Draft tokens by the tree they came from"),
    (
        "agentspec_accepted_tokens_by_source",
        "accepted_by_source",
        "Accepted tokens by the tree they came from",
    ),
)
STAGE_GAUGES: Table = (("agentspec_tree_bytes", "tree_bytes", "Bytes of the stage's tree"),)
UPSTREAM_GAUGES: Table = (
    ("agentspec_upstream_running", "num_running", "Requests that the engine answers now"),
    (
        "agentspec_upstream_up",
        "is_up",
        "0 after health.num_failed_looks failed probes or connections in a row",
    ),
    (
        "agentspec_upstream_stats_age_seconds",
        "stats_age_s",
        "Age of the engine's counters per stage, which it sends between two steps",
    ),
)
REQUEST_COUNTERS = (
    ("agentspec_upstream_requests", "Requests sent to the engine, retries included"),
    ("agentspec_upstream_failures", "Those that it did not answer, or failed itself"),
    ("agentspec_upstream_retries", "Those that had failed before, here or on another engine"),
)
CORPUS_COUNTERS: Table = (
    (
        "agentspec_corpus_published_outputs",
        "num_published",
        "Finished outputs that were sent to other engines",
    ),
    ("agentspec_corpus_skipped_outputs", "num_skipped", "Those of stages that are not shared: not sent"),
    (
        "agentspec_corpus_dropped_outputs",
        "num_dropped",
        "Those without room in the queue, or that could not be sent",
    ),
    ("agentspec_corpus_published_bytes", "num_published_bytes", "Bytes sent"),
    ("agentspec_corpus_learned_outputs", "num_learned", "Outputs of other engines that the trees learned"),
    ("agentspec_corpus_learned_tokens", "num_learned_tokens", "Their tokens"),
    (
        "agentspec_corpus_dropped_records",
        "num_dropped_records",
        "Records that were skipped: learning was too slow",
    ),
    ("agentspec_corpus_damaged", "num_damaged", "Batches and outputs that can't be used"),
    ("agentspec_corpus_learning_cpu_seconds", "learning_cpu_s", "CPU time of learning"),
    ("agentspec_corpus_snapshots", "num_snapshots", "Snapshots written"),
    ("agentspec_corpus_store_failures", "num_store_failures", "Calls of the store that failed"),
)
CORPUS_GAUGES: Table = (
    ("agentspec_corpus_missing_records", "num_missing_records", "Records that have not arrived"),
    ("agentspec_corpus_lag_seconds", "lag_s", "How long the oldest entry that is not learned has been known"),
    ("agentspec_corpus_memory_bytes", "memory_bytes", "Bytes of outputs remembered"),
)


class RequestMetrics:
    """Counters of the requests that one gateway sends to its engines."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._counters = [
            Counter(name, text, UPSTREAM_LABELS, registry=self._registry) for name, text in REQUEST_COUNTERS
        ]
        self._first_byte_s = Histogram(
            "agentspec_upstream_first_byte_seconds",
            "Time from sending a request to the head of its answer",
            UPSTREAM_LABELS,
            registry=self._registry,
            buckets=FIRST_BYTE_BUCKETS_S,
        )

    def of(self, engine: str) -> EngineMetrics:
        """Return the counters of the engine with this name. They go on where they were."""
        requests, failures, retries = (one.labels(engine) for one in self._counters)
        return EngineMetrics(requests, failures, retries, self._first_byte_s.labels(engine))

    def collect(self) -> Iterable[Metric]:
        """Return the metric families."""
        return self._registry.collect()


@dataclass(frozen=True, slots=True)
class EngineMetrics:
    """Counters of the tries sent to one engine.

    Attributes:
        failures: tries that it did not answer, or answered with a failure of its own.
        retries: tries after a failed one, on this or another engine.
        first_byte_s: times until the head of a response.
    """

    requests: Counter
    failures: Counter
    retries: Counter
    first_byte_s: Histogram


class Observable(Protocol):
    """An engine whose metrics are exported; ``stats_age_s``: of its counters per stage."""

    name: str
    num_running: int
    is_up: bool

    @property
    def stats_age_s(self) -> float:
        """Seconds since the moment that its counters per stage describe."""


def stage_metrics(stages: Mapping[StageKey, StageStats], num_labels: int) -> Iterator[Metric]:
    """Yield the metric families of stages.

    Per tenant the first ``num_labels`` stages keep their name. The others are summed up as ``other``, because
    clients choose stage names and every label permanently costs the scraper memory. The first ones, not the
    busiest: if a stage changed places, the sum of the others would decrease, which a counter must not do.
    """
    rows = _labelled(stages, num_labels)
    yield from _families(CounterMetricFamily, STAGE_COUNTERS, STAGE_LABELS, rows)
    for line in SOURCE_COUNTERS:
        counts = {labels: getattr(stats, line[1]) for labels, stats in rows.items()}
        by_source = {
            (*labels, source.name.lower()): {line[1]: of_stage.get(source, 0)}
            for labels, of_stage in counts.items()
            for source in reported(of_stage)
        }
        yield from _families(CounterMetricFamily, [line], [*STAGE_LABELS, "source"], by_source)
    yield from _families(GaugeMetricFamily, STAGE_GAUGES, STAGE_LABELS, rows)


def _labelled(stages: Mapping[StageKey, StageStats], num_labels: int) -> dict[tuple[str, ...], StageStats]:
    num_named: dict[str, int] = defaultdict(int)
    rows: dict[tuple[str, ...], list[StageStats]] = defaultdict(list)
    for stage, stats in stages.items():
        num_named[stage.tenant] += 1
        is_named = num_named[stage.tenant] <= num_labels
        rows[stage.tenant, stage.name if is_named else OTHER_STAGE].append(stats)
    return {labels: StageStats.sum(group) for labels, group in rows.items()}


def upstream_metrics(upstreams: Sequence[Observable], num_waiting: int) -> Iterator[Metric]:
    """Yield the metric families of engines, for which ``num_waiting`` requests wait."""
    yield GaugeMetricFamily(
        "agentspec_gateway_waiting", "Requests in line for an engine that has room", value=num_waiting
    )
    yield from _families(
        GaugeMetricFamily, UPSTREAM_GAUGES, UPSTREAM_LABELS, {(one.name,): one for one in upstreams}
    )


def corpus_metrics(figures: Mapping[str, Mapping[str, float]]) -> Iterator[Metric]:
    """Yield the metric families of corpora. ``figures`` are by engine and name; missing ones are left out."""
    rows: Rows = {(engine,): of_engine for engine, of_engine in figures.items()}
    yield from _families(CounterMetricFamily, CORPUS_COUNTERS, UPSTREAM_LABELS, rows)
    yield from _families(GaugeMetricFamily, CORPUS_GAUGES, UPSTREAM_LABELS, rows)


def _families(kind: Callable[..., Any], table: Table, labels: Sequence[str], rows: Rows) -> Iterator[Metric]:
    """Yield a metric family per line of ``table``, with the rows that have its value."""
    for name, key, text in table:
        family = kind(name, text, labels=labels)
        for values, row in rows.items():
            value = row.get(key) if isinstance(row, Mapping) else getattr(row, key)
            if value is not None:
                family.add_metric(values, float(value))
        yield family
