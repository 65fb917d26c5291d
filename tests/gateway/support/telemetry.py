"""A running gateway's metrics, and the log of its calls."""

from __future__ import annotations

import logging
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def scrape(root: str) -> Samples:
    answer = httpx.get(f"{root}/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def of_stage(samples: Samples, name: str, stage: str, **labels: str) -> float:
    return samples[name, tuple(sorted({"tenant": "default", "stage": stage, **labels}.items()))]


def num_waiting(root: str) -> float:
    """Return the number of requests in the engine's admission queue."""
    return scrape(root)["agentspec_gateway_waiting", ()]


def lines(caplog: pytest.LogCaptureFixture, level: int = logging.INFO) -> list[dict[str, Any]]:
    """Return the logged fields of the calls."""
    return [
        record.fields  # type: ignore[attr-defined]
        for record in caplog.records
        if record.getMessage() == "call" and record.levelno == level
    ]
