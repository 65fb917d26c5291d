"""Counters per stage. Plain sums: rates and ratios are properties."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Any, Generic, TypeVar

from agentspec.draft import SHARED, Source
from agentspec.stages import StageKey

OTHER_STAGE = "other"
MAX_STAGES = 4096
LEAST_MEASURED = 0.85  # share of the decode time from which on the time saved is shown

_T = TypeVar("_T")


@dataclass(slots=True)
class SpeculationStats:
    """Decode steps and drafts of one request. The client receives them in the body's ``metrics``.

    ``accepted_by_source`` and ``drafted_by_source`` count draft tokens. ``num_accepted_from_fleet`` and
    ``num_accepted_from_snapshot`` are the part of the accepted ones that only other engines' outputs had
    taught (:class:`agentspec.draft.Origin`).
    """

    num_steps: int = 0
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_accepted_from_fleet: int = 0
    num_accepted_from_snapshot: int = 0
    drafted_by_source: dict[Source, int] = field(default_factory=dict)
    accepted_by_source: dict[Source, int] = field(default_factory=dict)

    @property
    def num_accepted_from_shared(self) -> int:
        """Accepted tokens of trees that other engines have as well: of the stage, its parents, its tenant."""
        return sum(self.accepted_by_source.get(source, 0) for source in SHARED)

    def count_draft(self, source: Source, num_drafted: int, num_accepted: int) -> None:
        """Count a draft of ``num_drafted`` tokens that one pass verified, 0 = no draft."""
        if not num_drafted:
            return
        self.num_drafts += 1
        self.add_drafted(source, num_drafted, num_accepted)

    def count_origins(self, num_fleet: int, num_snapshot: int) -> None:
        """Count accepted tokens of other engines, which :meth:`add_drafted` counts as well."""
        self.num_accepted_from_fleet += num_fleet
        self.num_accepted_from_snapshot += num_snapshot

    def add_drafted(self, source: Source, num_drafted: int, num_accepted: int) -> None:
        """Count ``num_drafted`` verified draft tokens of a source."""
        self.num_draft_tokens += num_drafted
        self.num_accepted_tokens += num_accepted
        drafted, accepted = self.drafted_by_source, self.accepted_by_source
        drafted[source] = drafted.get(source, 0) + num_drafted
        accepted[source] = accepted.get(source, 0) + num_accepted


@dataclass(slots=True)
class StageStats(SpeculationStats):
    """Counters of one stage's requests.

    ``num_steps`` counts (request, decode step) pairs: forward passes that this stage's requests took
    part in while decoding. ``decode_s`` sums, over requests, the time from the first to the last output
    token. ``measured_decode_s`` is the part of it in steps for which the engine knows the time without
    drafts. ``plain_decode_s`` is that time without drafts. ``tree_limit_bytes`` is the budget of
    ``tree_bytes``, 0 if the engine does not report it.
    """

    num_requests: int = 0
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0
    decode_s: float = 0.0
    measured_decode_s: float = 0.0
    plain_decode_s: float = 0.0
    tree_bytes: int = 0
    tree_limit_bytes: int = 0

    @property
    def acceptance_rate(self) -> float:
        """Accepted draft tokens / draft tokens; 0 without drafts."""
        return self.num_accepted_tokens / self.num_draft_tokens if self.num_draft_tokens else 0.0

    @property
    def accepted_per_step(self) -> float:
        """See :func:`tokens_per_step`; 0 if unknown."""
        return tokens_per_step(self.num_steps, self.num_accepted_tokens, self.num_output_tokens) or 0.0

    @property
    def saved_s(self) -> float | None:
        """Seconds of decoding that drafts saved, negative if they cost more; None if unknown."""
        return saved_seconds(self.measured_decode_s, self.plain_decode_s, self.decode_s)

    @property
    def saved_by_others_s(self) -> float | None:
        """Other engines' part of :attr:`saved_s`, equal to their part of the accepted tokens; or None."""
        from_others = self.num_accepted_from_fleet + self.num_accepted_from_snapshot
        if not from_others:
            return None
        return None if self.saved_s is None else self.saved_s * from_others / self.num_accepted_tokens

    @classmethod
    def sum(cls, parts: Iterable[StageStats]) -> StageStats:
        """Return the sums of all counters, as a new object. Another thread may count meanwhile."""
        parts = list(parts)
        numbers: dict[str, Any] = {name: sum(map(attrgetter(name), parts)) for name in _NUMBERS}
        drafted = _sum_counts(part.drafted_by_source for part in parts)
        accepted = _sum_counts(part.accepted_by_source for part in parts)
        return cls(drafted_by_source=drafted, accepted_by_source=accepted, **numbers)


_NUMBERS = tuple(one.name for one in fields(StageStats) if not one.name.endswith("_by_source"))


def _sum_counts(parts: Iterable[dict[Source, int]]) -> dict[Source, int]:
    total: dict[Source, int] = {}
    for counts in parts:
        for source, count in counts.copy().items():  # a copy: a thread may add a source
            total[source] = total.get(source, 0) + count
    return total


def tokens_per_step(num_steps: int, num_accepted: int, num_output: int) -> float | None:
    """Return output tokens after the first one, per decode step (1.0 = no speculation).

    An output that ends in the pass that ends its prompt has no decode step. If all outputs do, return output
    tokens per pass. None if no steps and no accepted draft tokens are known.
    """
    if num_steps:
        return 1 + num_accepted / num_steps
    num_passes = num_output - num_accepted
    return num_output / num_passes if num_accepted and num_passes > 0 else None


def saved_seconds(measured_decode_s: float, plain_decode_s: float, decode_s: float) -> float | None:
    """Return the time saved by these counters of :class:`StageStats`; None if too little was measured."""
    # answers that end in their prompt's pass have no decode time, but steps that they saved
    is_measured = measured_decode_s > 0 or plain_decode_s > 0
    is_known = is_measured and measured_decode_s >= LEAST_MEASURED * decode_s
    return plain_decode_s - measured_decode_s if is_known else None


class StageTable(Generic[_T]):
    """One object per stage, e.g. its counters. Not thread-safe.

    Stage names are sent by clients: beyond ``max_stages`` of one tenant, its new stages share ``other``.

    Args:
        make: returns a new stage's object.
    """

    def __init__(self, make: Callable[[], _T], max_stages: int = MAX_STAGES) -> None:
        self._make = make
        self._max_stages = max_stages
        self._stages: dict[StageKey, _T] = {}
        self._num_stages: Counter[str] = Counter()

    @property
    def all(self) -> Mapping[StageKey, _T]:
        """The live object of every stage."""
        return self._stages

    def of(self, stage: StageKey) -> _T:
        """Return the object of this stage, or of ``other``."""
        known = self._stages.get(stage)
        if known is not None:
            return known
        if self._num_stages[stage.tenant] >= self._max_stages:
            stage = StageKey(stage.tenant, (OTHER_STAGE,))
        else:
            self._num_stages[stage.tenant] += 1
        return self._stages.setdefault(stage, self._make())
