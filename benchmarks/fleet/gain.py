"""Tokens per step of replicas with a corpus, against silos and against one engine."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from agentspec.replay.jobs import name_of, reporter, share_out
from agentspec.replay.replay import replay
from agentspec.replay.tally import total
from agentspec.reporting.report import Announce
from benchmarks.fleet.fleet import DEALS, GATEWAY, Fleet, Sharing, forests, shared_log
from benchmarks.fleet.recorded import read_calls
from benchmarks.fleet.sizes import Sizes
from benchmarks.harness.traces import files

Figures = dict[str, Any]
ONE = "one"


@dataclass(frozen=True, slots=True)
class Variant:
    """A fleet to simulate.

    Attributes:
        num_replicas: how many there are.
        deal: how calls are dealt to them, of ``DEALS``.
        sharing: how they share; None = they are silos.
    """

    num_replicas: int
    deal: str = "in turn"
    sharing: Sharing | None = None


def variants(num_replicas: Sequence[int], windows_s: Sequence[float]) -> dict[str, Variant]:
    """Return what is compared, by name."""
    most = max(num_replicas)
    return {
        ONE: Variant(1),
        **{
            f"{number} {deal}, {'corpus' if sharing else 'silos'}": Variant(number, deal, sharing)
            for number in num_replicas
            for deal in DEALS
            for sharing in (None, Sharing())
        },
        **{
            f"{most} in turn, corpus, window {window_s:g} s": Variant(most, sharing=Sharing(window_s))
            for window_s in windows_s
        },
    }


def measure(traces: Path, sizes: Sizes, announce: Announce) -> Figures:
    """Replay the first calls of each set through every variant. The figures are means over the sets."""
    compared = variants(sizes.num_replicas, sizes.windows_s)
    paths = files(traces)
    announce(f"gain: {len(compared)} fleets, up to {sizes.gain_calls} calls of each of {len(paths)} sets")
    arguments = [(path, compared, sizes.gain_calls, sizes.num_sessions) for path in paths]
    num_calls = len(compared) * len(paths) * sizes.gain_calls
    by_set = dict(
        zip(
            map(name_of, paths),
            share_out(outcomes, arguments, sizes.num_processes, num_calls),
            strict=True,
        )
    )
    return figures(by_set, max(sizes.num_replicas))


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a fleet reached, and what it sent to the store.

    Attributes:
        tokens_per_step: of all calls of a set.
        num_bytes: sent.
    """

    tokens_per_step: float
    num_bytes: int


def outcomes(
    path: Path, compared: dict[str, Variant], num_calls: int, num_sessions: int
) -> dict[str, Outcome]:
    """Return the outcome of each variant, for one set."""
    calls = read_calls(path, num_calls)
    found = {}
    for name, variant in compared.items():
        deal = DEALS[variant.deal]()
        with shared_log() if variant.sharing else nullcontext() as log:
            fleet = Fleet(name_of(path), forests(variant.num_replicas), deal, log, variant.sharing)
            tallies = replay(calls, fleet, num_sessions, reporter())
            found[name] = Outcome(
                total(tallies.values()).tokens_per_step,
                sum(replica.num_bytes for replica in fleet.replicas),
            )
    return found


def figures(by_set: dict[str, dict[str, Outcome]], most: int) -> Figures:
    """Return the figures that people compare, and those of each set."""
    names = list(next(iter(by_set.values())))
    tokens = {set_: {name: one[name].tokens_per_step for name in names} for set_, one in by_set.items()}
    gains = {name: mean(one[name] / one[ONE] for one in tokens.values()) for name in names}
    in_turn = [one[f"{most} in turn, corpus"] for one in by_set.values()]
    return {
        "fleet_gain": min(gains[f"{most} {deal}, corpus"] for deal in DEALS),
        "fleet_gain_silos": min(gains[f"{most} {deal}, silos"] for deal in DEALS),
        "fleet_gain_gateway": gains[f"{most} {GATEWAY}, corpus"],
        "of_one_engine": gains,
        "sent_mb": sum(one.num_bytes for one in in_turn) / 1e6,
        "tokens_per_step": {name: mean(one[name] for one in tokens.values()) for name in names},
        "tokens_per_step_by_set": tokens,
    }
