"""Bytes published without and with what an engine holds back, and the accepted tokens that this loses.

Nothing is held back if all outputs are published whole, and before that in parts of ``SMALL_PART`` tokens. An
engine lets the parts grow, sends repetitions as counts, and skips what shared trees have drafted. Updates of
models are left out: ``gain`` has their bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, astuple, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from agentspec.corpus.novelty import NoveltyGate
from agentspec.corpus.output import MOST_OUTPUT_TOKENS
from agentspec.replay.jobs import name_of, reporter, share_out
from agentspec.replay.replay import replay
from agentspec.replay.tally import total
from agentspec.reporting.report import Announce
from benchmarks.fleet.fleet import Fleet, Sharing, forests, in_turn, shared_log
from benchmarks.fleet.recorded import read_calls
from benchmarks.fleet.sizes import Sizes
from benchmarks.harness.traces import files

Figures = dict[str, Any]

EVERYTHING, PARTS, COUNTS, GATE = "everything", "parts", "counts", "gate"
WHOLE, WHOLE_GATE = "whole", "whole_gate"  # without parts
SMALL_PART = 4
_NO_GATE = partial(NoveltyGate, most_drafted=2.0)
_OUTPUTS = Sharing(has_models=False)
_EVERYTHING = replace(_OUTPUTS, make_gate=_NO_GATE, memory_bytes=0, part=SMALL_PART, most_more=0)

VARIANTS: Mapping[str, Sharing] = {
    EVERYTHING: _EVERYTHING,
    PARTS: replace(_OUTPUTS, make_gate=_NO_GATE, memory_bytes=0),
    COUNTS: replace(_OUTPUTS, make_gate=_NO_GATE),
    GATE: _OUTPUTS,
    WHOLE: replace(_EVERYTHING, part=MOST_OUTPUT_TOKENS),
    WHOLE_GATE: replace(_OUTPUTS, part=MOST_OUTPUT_TOKENS),
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was published and accepted."""

    num_bytes: int
    num_published: int
    num_duplicates: int
    num_skipped: int
    accepted: int
    steps: int


def outcomes(
    path: Path, variants: Mapping[str, Sharing], num_calls: int, num_replicas: int, num_sessions: int
) -> dict[str, Outcome]:
    """Return what becomes of the first calls of a set, by variant."""
    calls = read_calls(path, num_calls)
    found = {}
    for name, sharing in variants.items():
        with shared_log() as log:
            fleet = Fleet(name_of(path), forests(num_replicas), in_turn(), log, sharing)
            tally = total(replay(calls, fleet, num_sessions, reporter()).values())
            fleet.flush()
            sent = [replica.publisher.figures() for replica in fleet.replicas if replica.publisher]
        found[name] = Outcome(
            sum(one.num_bytes for one in sent),
            sum(one.num_published for one in sent),
            sum(one.num_duplicates for one in sent),
            sum(one.num_skipped for one in sent),
            tally.accepted,
            tally.steps,
        )
    return found


def measure(traces: Path, sizes: Sizes, announce: Announce) -> Figures:
    """Replay the first calls of each set in a fleet that publishes everything, and in others."""
    paths = files(traces)
    announce(
        f"novelty: {len(VARIANTS)} fleets, up to {sizes.novelty_calls} calls of each of {len(paths)} sets"
    )
    arguments = [
        (path, VARIANTS, sizes.novelty_calls, sizes.novelty_replicas, sizes.num_sessions) for path in paths
    ]
    num_calls = len(VARIANTS) * len(paths) * sizes.novelty_calls
    found = share_out(outcomes, arguments, sizes.num_processes, num_calls)
    return figures(dict(zip(map(name_of, paths), found, strict=True)))


def figures(by_set: Mapping[str, Mapping[str, Outcome]]) -> Figures:
    """Return the figures that people compare, those of all sets together, and those of each set."""
    together = {name: _summed(one[name] for one in by_set.values()) for name in VARIANTS}
    return {
        "novelty_cut": cut(together, GATE),
        "novelty_loss": loss(together, GATE),
        **_cuts(together),
        "gate_cut_of_whole": together[WHOLE].num_bytes / max(together[WHOLE_GATE].num_bytes, 1),
        "by_set": {
            name: {
                **_cuts(found),
                **{variant: asdict(one) for variant, one in found.items()},
            }
            for name, found in by_set.items()
        },
    }


def _cuts(found: Mapping[str, Outcome]) -> Figures:
    variants = [name for name in VARIANTS if name != EVERYTHING]
    return {
        **{f"{name}_cut": cut(found, name) for name in variants},
        **{f"{name}_loss": loss(found, name) for name in variants},
    }


def cut(found: Mapping[str, Outcome], variant: str) -> float:
    """Return the bytes of everything, as a multiple of a variant's."""
    return found[EVERYTHING].num_bytes / max(found[variant].num_bytes, 1)


def loss(found: Mapping[str, Outcome], variant: str) -> float:
    """Return the share of accepted tokens that a variant loses."""
    return 1 - found[variant].accepted / max(found[EVERYTHING].accepted, 1)


def _summed(found: Iterable[Outcome]) -> Outcome:
    return Outcome(*map(sum, zip(*map(astuple, found), strict=True)))
