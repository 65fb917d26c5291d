"""Sliding windows over counters, and a snapshot of one or all tenants' figures as JSON.

The dashboard and ``agentspec top`` show snapshots; docs/ui.md explains the figures. In a snapshot of all
tenants, paths begin with the tenant and rows name it.
"""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

from agentspec.gateway.dashboard.traffic import StagePath, StageTraffic, TenantTraffic
from agentspec.gateway.upstreams.usage import by_name
from agentspec.stats import StageStats, tokens_per_step

BUCKET_S = 2.0
NUM_BUCKETS = 90  # three minutes
NUM_NOW = 3  # number of buckets that count as "now": four to six seconds
MAX_SHOWN_STAGES = 100  # those with the most requests
MAX_SHOWN_EDGES = 200  # those seen most often
SHARED_FIGURES = (
    "num_published",
    "num_skipped",
    "num_dropped",
    "num_published_bytes",
    "num_learned",
    "num_learned_tokens",
    "num_dropped_records",
    "lag_s",
    "num_store_failures",
)


class Reading(NamedTuple):
    """Counters of a stage at a time in seconds, or their increase in a number of seconds."""

    seconds: float = 0.0
    num_requests: int = 0
    num_output_tokens: int = 0
    num_steps: int = 0
    num_accepted_tokens: int = 0

    def since(self, earlier: Reading) -> Reading:
        """Return the increase since an earlier reading."""
        return Reading._make(now - before for now, before in zip(self, earlier, strict=True))

    @property
    def requests_per_s(self) -> float:
        """Started requests per second."""
        return self.num_requests / self.seconds if self.seconds else 0.0

    @property
    def tokens_per_s(self) -> float:
        """Output tokens per second."""
        return self.num_output_tokens / self.seconds if self.seconds else 0.0

    @property
    def accepted_per_step(self) -> float | None:
        """As in StageStats; None if unknown."""
        return tokens_per_step(self.num_steps, self.num_accepted_tokens, self.num_output_tokens)


class SlidingWindow:
    """Readings of a stage's counters, ``BUCKET_S`` seconds apart. The newest may be younger.

    If a counter decreased, because the engine began anew, the window begins anew as well.
    """

    def __init__(self) -> None:
        self._readings: deque[Reading] = deque(maxlen=NUM_BUCKETS + 1)

    def update(self, now_s: float, stats: StageStats) -> None:
        """Add the present values of the counters."""
        now = Reading(
            now_s, stats.num_requests, stats.num_output_tokens, stats.num_steps, stats.num_accepted_tokens
        )
        readings = self._readings
        if readings and min(now.since(readings[-1])) < 0:
            readings.clear()
        if len(readings) > 1 and readings[-1].seconds - readings[-2].seconds < BUCKET_S:
            readings.pop()
        readings.append(now)

    @property
    def now(self) -> Reading:
        """Increase in the last ``NUM_NOW`` buckets."""
        return self._since(NUM_NOW)

    @property
    def recent(self) -> Reading:
        """Increase in the whole window."""
        return self._since(NUM_BUCKETS)

    @property
    def series(self) -> list[float | None]:
        """Output tokens per decode step of each bucket, oldest first; None without steps."""
        return [now.since(before).accepted_per_step for before, now in pairwise(self._readings)]

    def _since(self, num_buckets: int) -> Reading:
        if not self._readings:
            return Reading()
        return self._readings[-1].since(self._readings[max(0, len(self._readings) - 1 - num_buckets)])


class SlidingWindows:
    """The sliding windows of one tenant: for its stages with the most requests, and for the total.

    Attributes:
        stats: counters of every stage at the last update.
        sum: their sum at the last update.
        stages: sliding windows of the stages in the snapshot.
        total: sliding window of the total.
    """

    def __init__(self) -> None:
        self.stats: Mapping[StagePath, StageStats] = {}
        self.sum = StageStats()
        self.stages: dict[StagePath, SlidingWindow] = {}
        self.total = SlidingWindow()

    def update(self, now_s: float, stats: Mapping[StagePath, StageStats]) -> None:
        """Add the present values of the counters."""
        self.stats, self.sum = stats, StageStats.sum(stats.values())
        self.total.update(now_s, self.sum)
        shown = heapq.nlargest(MAX_SHOWN_STAGES, stats, key=lambda path: stats[path].num_requests)
        self.stages = {path: self.stages.get(path) or SlidingWindow() for path in shown}
        for path, window in self.stages.items():
            window.update(now_s, stats[path])


def describe_tenant(windows: SlidingWindows, traffic: TenantTraffic, interval_s: float) -> dict[str, Any]:
    """Return the snapshot of one tenant."""
    return _described(windows, traffic.stages, traffic.graph.edges, interval_s, _named)


def describe_all(
    windows: SlidingWindows, tenants: Mapping[str, TenantTraffic], interval_s: float
) -> dict[str, Any]:
    """Return the snapshot of all tenants. Paths in ``windows`` begin with the tenant."""
    stages = {
        (tenant, *path): traffic
        for tenant, known in tenants.items()
        for path, traffic in known.stages.items()
    }
    edges = {
        ((tenant, *one), (tenant, *other)): count
        for tenant, known in tenants.items()
        for (one, other), count in known.graph.edges.items()
    }
    return _described(windows, stages, edges, interval_s, _named_with_tenant)


def _named(path: StagePath) -> dict[str, str]:
    return {"stage": "/".join(path)}


def _named_with_tenant(path: StagePath) -> dict[str, str]:
    return {"tenant": path[0], "stage": "/".join(path[1:])}


def describe_engines(corpora: Mapping[str, Mapping[str, float]]) -> list[dict[str, Any]]:
    """Return what the engines that share outputs have shared. ``corpora`` are their figures by engine."""
    return [
        {"engine": engine, **{name: figures.get(name) for name in SHARED_FIGURES}}
        for engine, figures in sorted(corpora.items())
    ]


def _described(
    windows: SlidingWindows,
    traffic_of: Mapping[StagePath, StageTraffic],
    edges: Mapping[tuple[StagePath, StagePath], int],
    interval_s: float,
    named: Callable[[StagePath], dict[str, str]],
) -> dict[str, Any]:
    stats = windows.stats
    running = sum(traffic.num_running for traffic in traffic_of.values())
    return {
        "time": time.time(),
        "interval_s": interval_s,
        "total": {
            **_figures(windows.sum, windows.total),
            "tree_limit_bytes": None,  # a limit is each stage's own
            "saved_s": windows.sum.saved_s,
            "saved_by_others_s": windows.sum.saved_by_others_s,
            "num_running": running,
        },
        "stages": [
            {**named(path), **_stage(stats[path], window, traffic_of.get(path) or StageTraffic())}
            for path, window in sorted(windows.stages.items())
        ],
        "num_stages_left_out": len(stats) - len(windows.stages),
        "edges": _edges(edges, named),
    }


def _figures(stats: StageStats, window: SlidingWindow) -> dict[str, Any]:
    now = window.now
    return {
        "num_requests": stats.num_requests,
        "num_output_tokens": stats.num_output_tokens,
        "num_steps": stats.num_steps,
        "num_draft_tokens": stats.num_draft_tokens,
        "num_accepted_tokens": stats.num_accepted_tokens,
        "num_accepted_from_fleet": stats.num_accepted_from_fleet,
        "num_accepted_from_snapshot": stats.num_accepted_from_snapshot,
        "acceptance_rate": stats.acceptance_rate,
        "requests_per_s": now.requests_per_s,
        "tokens_per_s": now.tokens_per_s,
        "accepted_per_step": stats.accepted_per_step or None,
        "accepted_per_step_now": now.accepted_per_step,
        "accepted_per_step_recent": window.recent.accepted_per_step,
        "tree_bytes": stats.tree_bytes,
        "tree_limit_bytes": stats.tree_limit_bytes or None,
        "series": [value if value is None else round(value, 2) for value in window.series],
    }


def _stage(stats: StageStats, window: SlidingWindow, traffic: StageTraffic) -> dict[str, Any]:
    return {
        **_figures(stats, window),
        "saved_s": stats.saved_s,
        "drafted_by_source": by_name(stats.drafted_by_source),
        "accepted_by_source": by_name(stats.accepted_by_source),
        "num_running": traffic.num_running,
        "num_failed": traffic.num_failed,
        "mean_s": traffic.seconds / traffic.num_ended if traffic.num_ended else None,
        "tag_sources": traffic.tag_sources,
    }


def _edges(
    edges: Mapping[tuple[StagePath, StagePath], int], named: Callable[[StagePath], dict[str, str]]
) -> list[dict[str, Any]]:
    shown = heapq.nlargest(MAX_SHOWN_EDGES, edges.items(), key=lambda edge: edge[1])
    return [_edge(named(one), named(other), count) for (one, other), count in shown]


def _edge(one: dict[str, str], other: dict[str, str], count: int) -> dict[str, Any]:
    tenant = {name: text for name, text in one.items() if name != "stage"}  # edges stay within one tenant
    return {**tenant, "from": one["stage"], "to": other["stage"], "count": count}
