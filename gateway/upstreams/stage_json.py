"""Counters per stage as JSON: read from engines, and written for the gateway's clients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
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
    num_accepted_from_fleet: NonNegativeInt = 0
    num_accepted_from_snapshot: NonNegativeInt = 0
    decode_s: NonNegativeFloat = 0.0
    measured_decode_s: NonNegativeFloat = 0.0
    plain_decode_s: NonNegativeFloat = 0.0
    tree_bytes: NonNegativeInt = 0
    tree_limit_bytes: NonNegativeInt = 0
    drafted_by_source: dict[str, NonNegativeInt] = {}
    accepted_by_source: dict[str, NonNegativeInt] = {}


class _AllFigures(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)

    stages: list[_StageFigures]
    agentspec: str = ""
    age_s: NonNegativeFloat = 0.0
    corpus: dict[str, NonNegativeFloat] | None = None


@dataclass(frozen=True, slots=True)
class EngineFigures:
    """An answer of ``/agentspec/stages``.

    Attributes:
        plugin: version of the plugin that sent it; empty if a gateway did.
        age_s: seconds from the moment that the counters describe to the answer.
        corpus: figures of its corpus by name; None = it has none.
    """

    stages: Stages
    plugin: str
    age_s: float
    corpus: Mapping[str, float] | None = None


def read_figures(raw: bytes) -> EngineFigures:
    """Parse ``{"stages": [...], ...}``, keeping the order of the stages. Raises ValueError if malformed.

    A stage may occur once for each data-parallel rank. Its counters are summed up.
    """
    read = _AllFigures.model_validate_json(raw)
    stages: dict[StageKey, StageStats] = {}
    for stage, stats in map(_read, read.stages):
        stages[stage] = StageStats.sum((stages[stage], stats)) if stage in stages else stats
    return EngineFigures(stages, read.agentspec, read.age_s, read.corpus)


def describe_stages(stages: Stages) -> dict[str, list[dict[str, Any]]]:
    """Describe stages in the form that :func:`read_figures` reads, with the rates added."""
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
