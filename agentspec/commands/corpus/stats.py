"""``agentspec corpus stats``: sizes, ages and limits by tenant and stage."""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict, dataclass

from agentspec.commands.corpus import names
from agentspec.commands.corpus.place import Place, num_bytes, progress
from agentspec.commands.corpus.text import counted, cut, duration, owner, size, table
from agentspec.corpus.inventory import HeldOutput, Inventory
from agentspec.corpus.store import CorpusStore, Retention, Scope, ScopeStats
from agentspec.errors import ConfigError, CorpusError

COLUMNS = ("stage", "outputs", "uses", "tokens", "MiB", "oldest", "newest")
_MIB = 1 << 20
_VOCABULARY_CHARS = 24


@dataclass(frozen=True, slots=True)
class StageFigures:
    """A stage's distinct outputs. ``num_bytes`` is their share of log and snapshot; ages are in seconds."""

    stage: str
    num_outputs: int
    num_uses: int
    num_tokens: int
    num_bytes: int
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
    num_origins: int
    num_snapshot_bytes: int
    snapshot_age_s: float | None
    erasure_age_s: float | None  # of the last one of the whole
    num_tombstones: int
    num_unreadable: int
    retention: Retention | None
    stages: list[StageFigures]


def run(args: argparse.Namespace) -> int:
    """Run ``agentspec corpus stats``."""
    place = Place(args.corpus, args.corpus_snapshots)
    with place.reading() as store:
        stats = store.stats()
        scopes = names.known(args.tenant, list(stats), place.shown)
        figures: list[ScopeFigures] = []
        failures: list[str] = []
        with progress("reading", num_bytes(stats[scope] for scope in scopes)) as advance:
            for scope in scopes:
                try:
                    inventory = Inventory.of(place.contents(store, scope, advance))
                    figures.append(_figures(store, scope, stats[scope], inventory))
                except (ConfigError, CorpusError) as error:  # of one tenant, e.g. its key
                    failures.append(str(error))
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


def _figures(store: CorpusStore, scope: Scope, stats: ScopeStats, inventory: Inventory) -> ScopeFigures:
    stages = _stages(inventory)
    return ScopeFigures(
        tenant=scope.tenant,
        vocabulary=scope.vocabulary,
        is_encrypted=store.wrapped_key(scope) is not None,
        num_outputs=sum(stage.num_outputs for stage in stages),
        num_tokens=sum(stage.num_tokens for stage in stages),
        num_log_bytes=stats.num_bytes,
        num_log_batches=stats.num_entries,
        log_age_s=_age_s(stats.oldest_minute) if stats.num_entries else None,
        num_origins=len(inventory.origins),
        num_snapshot_bytes=stats.num_snapshot_bytes,
        snapshot_age_s=_age_s(stats.snapshot_minute) if stats.num_snapshot_bytes else None,
        erasure_age_s=_age_s(epoch // 60) if (epoch := store.epoch(scope)) else None,
        num_tombstones=inventory.num_tombstones,
        num_unreadable=inventory.num_unreadable,
        retention=stats.retention,
        stages=stages,
    )


def _stages(inventory: Inventory) -> list[StageFigures]:
    """Return the stages with outputs, the largest first."""
    by_stage: dict[str, list[HeldOutput]] = {}
    sizes: dict[str, int] = {}
    for held in inventory:
        by_stage.setdefault(names.stage_name(held.path), []).append(held)
    for path, stored_bytes in inventory.bytes_by_path.items():
        name = names.stage_name(path)
        sizes[name] = sizes.get(name, 0) + stored_bytes
    stages = [
        StageFigures(
            name,
            len(outputs),
            sum(held.uses for held in outputs),
            sum(held.num_tokens for held in outputs),
            sizes[name],
            _age_s(min(held.minute for held in outputs)),
            _age_s(max(held.minute for held in outputs)),
        )
        for name, outputs in by_stage.items()
    ]
    return sorted(stages, key=lambda stage: (-stage.num_bytes, stage.stage))


def _age_s(minute: int) -> float:
    return round(max(0.0, time.time() - 60 * minute))


def _shown(figures: ScopeFigures) -> str:
    vocabulary = cut(figures.vocabulary, _VOCABULARY_CHARS)
    lines = [
        f"{cut(owner(figures.tenant), 30)}, vocabulary {vocabulary}{', encrypted' * figures.is_encrypted}",
        f"  outputs   {figures.num_outputs:,}, {counted(figures.num_tokens, 'token')}",
        f"  log       {_log(figures)}",
        f"  snapshot  {_snapshot(figures)}",
        f"  limits    {_limits(figures.retention)}",
    ]
    erasures = []
    if figures.erasure_age_s is not None:
        erasures.append(f"as a whole {duration(figures.erasure_age_s)} ago")
    if figures.num_tombstones:
        erasures.append(f"stages or persons {counted(figures.num_tombstones, 'time')}")
    if erasures:
        lines.append(f"  erased    {', '.join(erasures)}")
    if figures.num_unreadable:
        lines.append(f"  damaged   {counted(figures.num_unreadable, 'batch', 'batches')}: see `verify`")
    if figures.stages:
        lines += ["", table(COLUMNS, [_row(stage) for stage in figures.stages])]
    return "\n".join(lines)


def _log(figures: ScopeFigures) -> str:
    if figures.log_age_s is None:
        return "empty"
    return (
        f"{size(figures.num_log_bytes)} in {counted(figures.num_log_batches, 'batch', 'batches')} of "
        f"{counted(figures.num_origins, 'engine')}, the oldest of {duration(figures.log_age_s)} ago"
    )


def _snapshot(figures: ScopeFigures) -> str:
    if figures.snapshot_age_s is None:
        return "none"
    return f"{size(figures.num_snapshot_bytes)}, of {duration(figures.snapshot_age_s)} ago"


def _limits(retention: Retention | None) -> str:
    if retention is None:
        return "unknown: no engine has published here yet"
    return f"{size(retention.most_bytes)} of log, {duration(retention.most_age_s)} of age"


def _row(stage: StageFigures) -> tuple[str, ...]:
    return (
        stage.stage,
        f"{stage.num_outputs:,}",
        f"{stage.num_uses:,}",
        f"{stage.num_tokens:,}",
        f"{stage.num_bytes / _MIB:.1f}",
        duration(stage.oldest_s),
        duration(stage.newest_s),
    )
