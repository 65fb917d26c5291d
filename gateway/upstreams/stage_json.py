"""Counters per stage as JSON: read from engines, and written for the gateway's clients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from pydantic import BaseModel, ConfigDict, NonNegativeFloat, NonNegativeInt

from agentspec.draft import Source
from agentspec.stages import StageKey
from agentspec.stats import StageStats

Stages = Mapping[StageKey, StageStats]

_SOURCES = {source.name.lower(): source for source in Source if source is not Source.NONE}


class _StageFigures(BaseModel):
    """One stage's counters. Missing ones are 0 and unknown ones ignored: versions may differ."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)

    tenant: str
    stage: str
    num_requests: NonNegativeInt = 0
    num_prompt_tokens: NonNegativeInt = 0
    num_output_tokens: NonNegativeInt = 0
    num_steps: NonNegativeInt = 0
    num_drafts: NonNegativeInt = 0
    num_draft_tokens: NonNegativeInt = 0
    num_accepted_tokens: NonNegativeInt = 0
    decode_s: NonNegativeFloat = 0.0
    measured_decode_s: NonNegativeFloat = 0.0
    plain_decode_s: NonNegativeFloat = 0.0
    tree_bytes: NonNegativeInt = 0
    tree_limit_bytes: NonNegativeInt = 0
    drafted_by_source: dict[str, NonNegativeInt] = {}
    accepted_by_source: dict[str, NonNegativeInt] = {}


class _AllFigures(BaseModel):
    stages: list[_StageFigures]


def read_stages(raw: bytes) -> Stages:
    """Parse the counters in ``{"stages": [...]}``, keeping their order. Raises ValueError if malformed."""
    return dict(_read(one) for one in _AllFigures.model_validate_json(raw).stages)


def describe_stages(stages: Stages) -> dict[str, list[dict[str, Any]]]:
    """Describe stages in the form that :func:`read_stages` reads, with the rates added."""
    return {"stages": [_describe(stage, stats) for stage, stats in stages.items()]}


def _read(figures: _StageFigures) -> tuple[StageKey, StageStats]:
    counts = figures.model_dump(exclude={"tenant", "stage"})
    for name in ("drafted_by_source", "accepted_by_source"):
        counts[name] = {_SOURCES[key]: num for key, num in counts[name].items() if key in _SOURCES}
    return StageKey.parse(figures.stage, figures.tenant), StageStats(**counts)


def _describe(stage: StageKey, stats: StageStats) -> dict[str, Any]:
    return {
        "tenant": stage.tenant,
        "stage": stage.name,
        **asdict(stats),
        "drafted_by_source": by_name(stats.drafted_by_source),
        "accepted_by_source": by_name(stats.accepted_by_source),
        "acceptance_rate": stats.acceptance_rate,
        "accepted_per_step": stats.accepted_per_step,
        "saved_s": stats.saved_s,
    }


def by_name(counts: Mapping[Source, int]) -> dict[str, int]:
    """Return counts keyed by the source's name, as in JSON."""
    return {name: counts[source] for name, source in _SOURCES.items() if source in counts}
