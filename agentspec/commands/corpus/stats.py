"""``agentspec corpus stats``: sizes, ages and damage by tenant and stage."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from agentspec.commands.corpus.place import Contents, Place, contents, known_scopes, progress, stage_name
from agentspec.commands.corpus.text import counted, cut, duration, owner, size, table
from agentspec.corpus.batch import Output
from agentspec.corpus.store import CorpusStore, Scope, ScopeStats
from agentspec.errors import ConfigError, CorpusError

COLUMNS = ("stage", "outputs", "uses", "tokens", "oldest", "newest")
_VOCABULARY_CHARS = 24


@dataclass(frozen=True, slots=True)
class StageFigures:
    """A stage's distinct outputs. Ages are in seconds."""

    stage: str
    num_outputs: int
    num_uses: int
    num_tokens: int
    oldest_s: float
    newest_s: float


@dataclass(frozen=True, slots=True)
class ScopeFigures:
    """What a corpus holds of one tenant, adapter and vocabulary. Ages are in seconds."""

    tenant: str
    vocabulary: str
    is_encrypted: bool
    num_outputs: int
    num_tokens: int
    num_log_bytes: int
    num_log_batches: int
    log_age_s: float | None
    num_snapshot_bytes: int
    snapshot_age_s: float | None
    erasure_age_s: float | None  # of the last one of the whole
    num_tombstones: int
    num_damaged: int
    stages: list[StageFigures]


def run(args: argparse.Namespace) -> int:
    """Run ``agentspec corpus stats``."""
    place = Place(args.corpus)
    with place.reading() as store:
        stats = store.stats()
        scopes = known_scopes(args.tenant, stats, place.shown)
        figures: list[ScopeFigures] = []
        failures: list[str] = []
        with progress("reading", len(scopes)) as advance:
            for scope in scopes:
                try:
                    held = contents(place.log(store, scope), scope.tenant)
                    figures.append(_figures(store, scope, stats[scope], held))
                except (ConfigError, CorpusError) as error:  # of one tenant, e.g. its key
                    failures.append(str(error))
                advance(1)
        num_foreign = store.num_foreign
    if args.json:
        found = {"corpus": place.shown, "scopes": [asdict(one) for one in figures]}
        print(json.dumps({**found, "num_foreign": num_foreign, "failures": failures}, indent=2))
    elif figures or not failures:
        print("\n\n".join(map(_shown, figures)) or f"{place.shown} holds no outputs yet")
    if num_foreign:
        print(f"{counted(num_foreign, 'value')} of the store were written by no engine", file=sys.stderr)
    for line in failures:
        print(f"error: {line}", file=sys.stderr)
    return int(bool(failures))


def _figures(store: CorpusStore, scope: Scope, stats: ScopeStats, held: Contents) -> ScopeFigures:
    stages = _stages(held.outputs)
    return ScopeFigures(
        tenant=scope.tenant,
        vocabulary=scope.vocabulary,
        is_encrypted=store.wrapped_key(scope) is not None,
        num_outputs=sum(stage.num_outputs for stage in stages),
        num_tokens=sum(stage.num_tokens for stage in stages),
        num_log_bytes=stats.num_bytes,
        num_log_batches=stats.num_entries,
        log_age_s=_age_s(stats.oldest_minute) if stats.num_entries else None,
        num_snapshot_bytes=stats.num_snapshot_bytes,
        snapshot_age_s=_age_s(stats.snapshot_minute) if stats.num_snapshot_bytes else None,
        erasure_age_s=_age_s(epoch // 60) if (epoch := store.marks(scope).epoch) else None,
        num_tombstones=held.outputs.num_tombstones,
        num_damaged=held.num_damaged,
        stages=stages,
    )


def _stages(outputs: Iterable[Output]) -> list[StageFigures]:
    """Return the stages with outputs, the largest first."""
    by_stage: dict[str, list[Output]] = {}
    for output in outputs:
        by_stage.setdefault(stage_name(output.stage.path), []).append(output)
    stages = [
        StageFigures(
            name,
            len(of_stage),
            sum(output.uses for output in of_stage),
            sum(len(output.tokens) for output in of_stage),
            _age_s(min(output.minute for output in of_stage)),
            _age_s(max(output.minute for output in of_stage)),
        )
        for name, of_stage in by_stage.items()
    ]
    return sorted(stages, key=lambda stage: (-stage.num_tokens, stage.stage))


def _age_s(minute: int) -> float:
    return round(max(0.0, time.time() - 60 * minute))


def _shown(figures: ScopeFigures) -> str:
    vocabulary = cut(figures.vocabulary, _VOCABULARY_CHARS)
    lines = [
        f"{cut(owner(figures.tenant), 30)}, vocabulary {vocabulary}{', encrypted' * figures.is_encrypted}",
        f"  outputs   {figures.num_outputs:,}, {counted(figures.num_tokens, 'token')}",
        f"  log       {_log(figures)}",
        f"  snapshot  {_snapshot(figures)}",
    ]
    erasures = []
    if figures.erasure_age_s is not None:
        erasures.append(f"as a whole {duration(figures.erasure_age_s)} ago")
    if figures.num_tombstones:
        erasures.append(f"stages or persons {counted(figures.num_tombstones, 'time')}")
    if erasures:
        lines.append(f"  erased    {', '.join(erasures)}")
    if figures.num_damaged:
        lines.append(f"  damaged   {counted(figures.num_damaged, 'batch', 'batches')}, which engines ignore")
    if figures.stages:
        lines += ["", table(COLUMNS, [_row(stage) for stage in figures.stages])]
    return "\n".join(lines)


def _log(figures: ScopeFigures) -> str:
    if figures.log_age_s is None:
        return "empty"
    batches = counted(figures.num_log_batches, "batch", "batches")
    return f"{size(figures.num_log_bytes)} in {batches}, the oldest of {duration(figures.log_age_s)} ago"


def _snapshot(figures: ScopeFigures) -> str:
    if figures.snapshot_age_s is None:
        return "none"
    return f"{size(figures.num_snapshot_bytes)}, of {duration(figures.snapshot_age_s)} ago"


def _row(stage: StageFigures) -> tuple[str, ...]:
    return (
        stage.stage,
        f"{stage.num_outputs:,}",
        f"{stage.num_uses:,}",
        f"{stage.num_tokens:,}",
        duration(stage.oldest_s),
        duration(stage.newest_s),
    )
