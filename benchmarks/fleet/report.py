"""The results of all parts: a summary and the bars."""

from __future__ import annotations

from operator import ge, le
from typing import Any

from benchmarks.harness.scorecard import Bar, Parts, Scorecard

BARS = (
    Bar("16 replicas: tokens per step, of one engine's", "gain", "fleet_gain", ge, 0.97),
    Bar("the same, calls dealt by our gateway", "gain", "fleet_gain_gateway", ge, 0.97),
    Bar("publish, us, p50", "publish", "publish_us_p50", le, 20),
    Bar("publish, us, p99", "publish", "publish_us_p99", le, 100),
    Bar(
        "publish: a decode step, p99, of one without a store",
        "publish",
        "step_p99_vs_alone",
        le,
        1.05,
    ),
    Bar("the same, with ten times its own outputs", "publish", "overload_step_p99_vs_alone", le, 1.05),
    Bar("publish: errors", "publish", "num_errors", le, 0, is_summed=False),
    Bar("publish: most lag, s", "publish", "lag_s_max", le, 15, is_summed=False),
    Bar("joining 2 M tokens, s", "join", "join_s", le, 5),
    Bar("first 20 requests: accepted, of a warm engine's", "join", "join_acceptance", ge, 0.95),
    Bar("outages: errors", "outage", "outage_errors", le, 0),
    Bar("outages: added to publish, ms, p99", "outage", "outage_added_ms_p99", le, 1),
    Bar("outages: as before after, s", "outage", "outage_recovery_s", le, 10),
)


def summary(parts: Parts) -> dict[str, Any]:
    """Return the figures that people compare; None if a part was not measured."""
    return {bar.figure: bar.value(parts) for bar in BARS if bar.is_summed}


CARD = Scorecard("fleet", "replicas that share what they learn", BARS, summary)
