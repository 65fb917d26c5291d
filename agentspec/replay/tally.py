"""Counts of a replay."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from agentspec.draft import Draft, Source

Kind = TypeVar("Kind", Source, int)

NUM_BINS = 20  # of estimated probabilities
MATCH_LABELS = {1: "1", 2: "2-3", 4: "4-7", 8: "8-15", 16: "16-31", 32: "32-63", 64: "64+"}
MATCH_BUCKETS = tuple(MATCH_LABELS)  # tokens; a match counts in the largest bucket that it reaches


@dataclass(slots=True)
class Counts:
    """Number of drafts of one kind, of their tokens, and of the tokens accepted."""

    drafts: int = 0
    drafted: int = 0
    accepted: int = 0

    def add(self, drafts: int, drafted: int, accepted: int) -> None:
        """Add to the counts."""
        self.drafts += drafts
        self.drafted += drafted
        self.accepted += accepted


def _by_kind() -> defaultdict[Any, Counts]:
    return defaultdict(Counts)


@dataclass(slots=True)
class Bin:
    """A bin of estimated probabilities: number of draft tokens, sum of their estimates, number accepted."""

    num: int = 0
    expected: float = 0.0
    hits: int = 0


@dataclass(slots=True)
class Tally:
    """Counts of any number of steps. Estimates count only for tokens that were reached."""

    steps: int = 0
    tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    draft_ns: int = 0
    by_source: defaultdict[Source, Counts] = field(default_factory=_by_kind)
    by_match: defaultdict[int, Counts] = field(default_factory=_by_kind)  # by bucket
    bins: list[Bin] = field(default_factory=lambda: [Bin() for _ in range(NUM_BINS)])

    def add(self, draft: Draft, accepted: int, new: int, elapsed_ns: int) -> None:
        """Count a step: ``accepted`` tokens of the draft, ``new`` tokens in total."""
        self.steps += 1
        self.tokens += new
        self.drafted += len(draft)
        self.accepted += accepted
        self.draft_ns += elapsed_ns
        if not len(draft):
            return
        bucket = max((size for size in MATCH_BUCKETS if size <= draft.match_length), default=0)
        for counts in (self.by_source[draft.source], self.by_match[bucket]):
            counts.add(1, len(draft), accepted)

    def add_estimate(self, probability: float, is_right: bool) -> None:
        """Count a draft token with an accepted parent: its conditional probability, and the outcome."""
        one = self.bins[min(int(probability * NUM_BINS), NUM_BINS - 1)]
        one.num += 1
        one.expected += probability
        one.hits += is_right

    def include(self, other: Tally) -> Tally:
        """Add another tally's counts and return this one."""
        for name in ("steps", "tokens", "drafted", "accepted", "draft_ns"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        _add(self.by_source, other.by_source)
        _add(self.by_match, other.by_match)
        for mine, its in zip(self.bins, other.bins, strict=True):
            mine.num += its.num
            mine.expected += its.expected
            mine.hits += its.hits
        return self

    @property
    def tokens_per_step(self) -> float:
        """Mean new tokens per step, including the model's own."""
        return _share(self.tokens, self.steps)

    @property
    def drafted_per_step(self) -> float:
        """Draft tokens per step."""
        return _share(self.drafted, self.steps)

    @property
    def accepted_per_step(self) -> float:
        """Accepted draft tokens per step."""
        return _share(self.accepted, self.steps)

    @property
    def acceptance_rate(self) -> float:
        """Share of the draft tokens that were accepted."""
        return _share(self.accepted, self.drafted)

    @property
    def draft_us_per_step(self) -> float:
        """Drafting time per step, in microseconds."""
        return _share(self.draft_ns / 1e3, self.steps)

    def figures(self) -> dict[str, float]:
        """Return the main counts for the JSON report."""
        return {
            "steps": self.steps,
            "tokens": self.tokens,
            "tokens_per_step": self.tokens_per_step,
            "drafted_per_step": self.drafted_per_step,
            "acceptance_rate": self.acceptance_rate,
            "draft_us_per_step": self.draft_us_per_step,
        }

    @property
    def calibration(self) -> list[dict[str, float]]:
        """For each non-empty bin: number of draft tokens, mean estimate, share accepted."""
        return [
            {"num": one.num, "expected": one.expected / one.num, "observed": one.hits / one.num}
            for one in self.bins
            if one.num
        ]

    @property
    def calibration_error(self) -> float | None:
        """Expected calibration error: mean distance of estimate and outcome. None without estimates."""
        num = sum(one.num for one in self.bins)
        return sum(abs(one.expected - one.hits) for one in self.bins) / num if num else None


def accepted_shares(counts: Mapping[Kind, Counts]) -> dict[Kind, float]:
    """Return each kind's share of the accepted draft tokens."""
    accepted = sum(one.accepted for one in counts.values())
    return {kind: _share(one.accepted, accepted) for kind, one in sorted(counts.items())}


def total(tallies: Iterable[Tally]) -> Tally:
    """Return the sum of the tallies."""
    summed = Tally()
    for tally in tallies:
        summed.include(tally)
    return summed


def _share(part: float, whole: int) -> float:
    return part / whole if whole else 0.0


def _add(counts: defaultdict[Any, Counts], others: Mapping[Any, Counts]) -> None:
    for key, one in others.items():
        counts[key].add(one.drafts, one.drafted, one.accepted)
