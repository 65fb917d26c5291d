"""A gateway's counters per stage over an interval, from its ``/metrics``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

import httpx
from prometheus_client.parser import text_string_to_metric_families

from examples.saving.stage_row import ALL, StageRow

Counts = dict[str, float]

_PREFIX = "agentspec_"
_COUNTERS = (
    "requests",
    "output_tokens",
    "decode_steps",
    "decode_seconds",
    "draft_tokens",
    "accepted_tokens",
    "draft_tokens_by_source",
)


def counted(base_url: str) -> dict[str, Counts]:
    """Return all counters by stage; empty if the server is not an AgentSpec gateway."""
    address = urlsplit(base_url)
    try:
        answer = httpx.get(f"{address.scheme}://{address.netloc}/metrics", timeout=10.0, trust_env=False)
    except httpx.HTTPError:
        return {}
    counts: dict[str, Counts] = defaultdict(Counts)
    if answer.status_code == 200:
        for family in text_string_to_metric_families(answer.text):
            name = family.name.removeprefix(_PREFIX)
            if family.name.startswith(_PREFIX) and name in _COUNTERS:
                for sample in family.samples:
                    if sample.name.endswith("_total"):
                        source = sample.labels.get("source")
                        counts[sample.labels["stage"]][f"{name}:{source}" if source else name] = sample.value
    return dict(counts)


def since(before: Mapping[str, Counts], now: Mapping[str, Counts]) -> dict[str, Counts]:
    """Return the differences, for stages that were called in between."""
    grown = {
        stage: {name: value - before.get(stage, {}).get(name, 0.0) for name, value in counts.items()}
        for stage, counts in now.items()
    }
    return {stage: counts for stage, counts in grown.items() if counts.get("requests")}


def rows(on: Mapping[str, Counts], off: Mapping[str, Counts]) -> list[StageRow]:
    """Return one row per stage, then the total; ``off`` has the counters without speculation, if any."""
    whole = {ALL: _sum(on.values())} if on else {}
    whole_off = {ALL: _sum(off.values())} if off else {}
    every, every_off = {**on, **whole}, {**off, **whole_off}
    return [_row(stage, counts, every_off.get(stage, {})) for stage, counts in every.items()]


def _sum(parts: Iterable[Counts]) -> Counts:
    total: Counts = defaultdict(float)
    for counts in parts:
        for name, value in counts.items():
            total[name] += value
    return dict(total)


def _row(stage: str, on: Counts, off: Counts) -> StageRow:
    by_source = {
        name.partition(":")[2]: int(value) for name, value in on.items() if name.startswith("draft_tokens_by")
    }
    return StageRow(
        stage,
        calls=int(on["requests"]),
        output_tokens=int(on["output_tokens"]),
        steps=int(on.get("decode_steps", 0)),
        drafted=int(on.get("draft_tokens", 0)),
        accepted=int(on.get("accepted_tokens", 0)),
        by_source=by_source,
        tpot_off_s=_tpot(off),
        tpot_on_s=_tpot(on),
    )


def _tpot(counts: Counts) -> float:
    """Return the time per output token after the first of each call, in seconds."""
    num_later = counts.get("output_tokens", 0) - counts.get("requests", 0)
    return counts.get("decode_seconds", 0) / num_later if num_later > 0 else 0.0
