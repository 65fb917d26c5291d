"""``/metrics`` per stage: an upstream's counters in Prometheus form."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from agentspec.draft import Source, reported
from agentspec.stages import StageKey
from agentspec.stats import OTHER_STAGE, StageStats

LABELS = ["tenant", "stage"]
COUNTERS = (
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
SOURCE_COUNTERS = (
    ("agentspec_draft_tokens_by_source", "drafted_by_source", "Draft tokens by the tree they came from"),
    (
        "agentspec_accepted_tokens_by_source",
        "accepted_by_source",
        "Accepted tokens by the tree they came from",
    ),
)


class StageCollector(Collector):
    """A snapshot of the counters as metrics.

    Per tenant the first ``num_labels`` stages keep their name. The others are summed up as ``other``, because
    clients choose stage names and every label permanently costs the scraper memory. The first ones, not the
    busiest: if a stage changed places, the sum of the others would decrease, which a counter must not do.
    """

    def __init__(self, stages: Mapping[StageKey, StageStats], num_labels: int) -> None:
        self._stages = stages
        self._num_labels = num_labels

    def collect(self) -> Iterator[Metric]:
        """Yield one family per counter."""
        rows = self._labelled()
        for name, attribute, text in COUNTERS:
            family = CounterMetricFamily(name, text, labels=LABELS)
            for labels, stats in rows.items():
                family.add_metric(labels, getattr(stats, attribute))
            yield family
        for name, attribute, text in SOURCE_COUNTERS:
            yield _source_family(name, attribute, text, rows)
        tree_bytes = GaugeMetricFamily("agentspec_tree_bytes", "Bytes of the stage's tree", labels=LABELS)
        for labels, stats in rows.items():
            tree_bytes.add_metric(labels, stats.tree_bytes)
        yield tree_bytes

    def _labelled(self) -> dict[tuple[str, str], StageStats]:
        num_named: dict[str, int] = defaultdict(int)
        rows: dict[tuple[str, str], list[StageStats]] = defaultdict(list)
        for stage, stats in self._stages.items():
            num_named[stage.tenant] += 1
            is_named = num_named[stage.tenant] <= self._num_labels
            rows[stage.tenant, stage.name if is_named else OTHER_STAGE].append(stats)
        return {labels: StageStats.sum(group) for labels, group in rows.items()}


def _source_family(
    name: str, attribute: str, text: str, rows: Mapping[tuple[str, str], StageStats]
) -> CounterMetricFamily:
    family = CounterMetricFamily(name, text, labels=[*LABELS, "source"])
    for labels, stats in rows.items():
        counts: dict[Source, int] = getattr(stats, attribute)
        for source in reported(counts):
            family.add_metric([*labels, source.name.lower()], counts.get(source, 0))
    return family
