"""Counters per stage of HTTP engines: the JSON of our plugin, or read from the responses of other engines."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import msgspec
from pydantic import BaseModel, ConfigDict, NonNegativeFloat, NonNegativeInt

from agentspec.draft import Source
from agentspec.stages import StageKey
from agentspec.stats import MAX_STAGES, StageStats, StageTable

Stages = Mapping[StageKey, StageStats]

_SOURCES = {source.name.lower(): source for source in Source if source is not Source.NONE}
TAIL_LIMIT_BYTES = 1 << 14
HEAD_LIMIT_BYTES = 1 << 12
BODY_LIMIT_BYTES = 1 << 20
# the messages API counts cached tokens separately; in responses they are included in input_tokens
INPUT_NAMES = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
_USAGE = b'"usage":'  # inside generated text the quotes would be escaped
_METRICS = b'"metrics":'


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


_decode_strictly = msgspec.json.Decoder().decode
_decode = json.JSONDecoder().raw_decode


class UsageTail:
    """The last bytes of a stream, or a whole body up to ``BODY_LIMIT_BYTES``."""

    __slots__ = ("_head", "_is_event_stream", "_limit_bytes", "_num_bytes", "_older", "_parts")

    def __init__(self, *, is_event_stream: bool) -> None:
        self._is_event_stream = is_event_stream
        self._limit_bytes = TAIL_LIMIT_BYTES if is_event_stream else BODY_LIMIT_BYTES
        self._parts: list[bytes] = []
        self._num_bytes = 0
        self._older: list[bytes] = []
        self._head = b""

    def add(self, part: bytes) -> None:
        """Add the next bytes of the response."""
        self._parts.append(part)
        self._num_bytes += len(part)
        if self._num_bytes > self._limit_bytes:
            self._turn_over()

    def payload(self) -> dict[str, Any]:
        """Return the object with ``usage`` and perhaps ``metrics``; empty if the kept bytes have none."""
        data = b"".join((*self._older, *self._parts))
        if not self._is_event_stream:
            return _object(data)
        payload = _counted(data)
        if payload.get("type") == "message_delta":
            message = _member(_first_event(self._head or data[:HEAD_LIMIT_BYTES]), "message")
            counted = {name: num for name, num in _member(payload, "usage").items() if num is not None}
            payload["usage"] = {**_member(message, "usage"), **counted}
        return payload

    def _turn_over(self) -> None:
        """Drop older parts: all but the last full batch of a stream, all parts of a body."""
        if self._is_event_stream:
            self._head = self._head or b"".join(self._parts)[:HEAD_LIMIT_BYTES]
            self._older, self._num_bytes = self._parts, 0
        self._parts = []


def _counted(data: bytes) -> dict[str, Any]:
    """Return the object around the last ``usage`` in the events at the end of a stream."""
    place = data.rfind(_USAGE)
    if place < 0:
        return {}
    start, end = data.rfind(b"\n", 0, place) + 1, data.find(b"\n", place)
    line = data[start:] if end < 0 else data[start:end]
    event = _event(line) if len(line) <= TAIL_LIMIT_BYTES else {}  # longer lines repeat the whole answer
    event = event or {"usage": _cut(line, _USAGE), "metrics": _cut(line, _METRICS)}
    return _member(event, "response") or event


def _first_event(data: bytes) -> dict[str, Any]:
    return next((event for line in data.splitlines() if (event := _event(line))), {})


def _event(line: bytes) -> dict[str, Any]:
    """Return the object of a ``data:`` line; empty if it is another line or lost its beginning."""
    return _object(line.removeprefix(b"data:")) if line.startswith(b"data:") else {}


def _cut(line: bytes, name: bytes) -> object:
    """Return the last member of this name in an object that is too large or lost its beginning."""
    _, found, rest = line.rpartition(name)
    try:
        return _decode(rest.decode().lstrip())[0] if found else None
    except (ValueError, RecursionError):
        return None


def _object(data: bytes) -> dict[str, Any]:
    for decode in (_decode_strictly, json.loads):  # the first is fast, the second accepts NaN of some engines
        try:
            payload = decode(data)
        except (ValueError, RecursionError):
            continue
        return payload if isinstance(payload, dict) else {}
    return {}


class StageUsage:
    """The sums of requests, tokens and drafts per stage."""

    def __init__(self, max_stages: int = MAX_STAGES) -> None:
        self._stages = StageTable(StageStats, max_stages)

    @property
    def stats(self) -> Mapping[StageKey, StageStats]:
        """Counters per stage so far."""
        return self._stages.all

    def count_request(self, stage: StageKey) -> None:
        """Count a forwarded request."""
        self._stages.of(stage).num_requests += 1

    def count_answer(self, stage: StageKey, payload: Mapping[str, Any]) -> None:
        """Add the ``usage`` and ``metrics.speculative_decoding`` of a response, if present.

        The names in ``usage`` may be those of completions, responses or messages.
        """
        stats = self._stages.of(stage)
        num_output = num_output_tokens(payload)
        stats.num_prompt_tokens += num_input_tokens(payload)
        stats.num_output_tokens += num_output
        figures = _member(_member(payload, "metrics"), "speculative_decoding")
        num_accepted = _count(figures, "num_accepted_draft_tokens")
        if figures:
            # vLLM's num_spec_steps counts only steps with a draft. Each decode step adds one token to the
            # accepted ones, and the first token precedes all steps
            num_steps = num_output - 1 - num_accepted
            stats.num_steps += max(num_steps, _count(figures, "num_spec_steps"))
        stats.num_draft_tokens += _count(figures, "num_draft_tokens")
        stats.num_accepted_tokens += num_accepted
        _add(stats.drafted_by_source, _member(figures, "draft_tokens_by_source"))
        _add(stats.accepted_by_source, _member(figures, "accepted_tokens_by_source"))


def num_input_tokens(payload: Mapping[str, Any]) -> int:
    """Return the number of input tokens in the ``usage`` of a response of any API; 0 if missing."""
    usage = _member(payload, "usage")
    return _count(usage, "prompt_tokens") or sum(_count(usage, name) for name in INPUT_NAMES)


def num_output_tokens(payload: Mapping[str, Any]) -> int:
    """Return the number of output tokens in the ``usage`` of a response of any API; 0 if missing."""
    usage = _member(payload, "usage")
    return _count(usage, "completion_tokens") or _count(usage, "output_tokens")


def _member(payload: Mapping[str, Any], name: str) -> dict[str, Any]:
    member = payload.get(name)
    return member if isinstance(member, dict) else {}


def _count(payload: Mapping[str, Any], name: str) -> int:
    value = payload.get(name)
    return value if isinstance(value, int) and value > 0 else 0


def _add(total: dict[Source, int], counts: Mapping[str, Any]) -> None:
    for source in Source if counts else ():
        if num := _count(counts, source.name.lower()):
            total[source] = total.get(source, 0) + num
