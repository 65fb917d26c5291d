"""The measurement of one scope, in its own process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from agentspec.forest import Tokens
from benchmarks.harness.process import resident_bytes, without_gc
from lab.churn.markers import Markers
from lab.churn.meter import LIMIT_MS, WITHDRAWAL, Meter, Times
from lab.churn.scopes import Scope
from lab.churn.sizes import Sizes
from lab.churn.texts import Texts
from lab.churn.traffic import Traffic

NUM_SAMPLES = 100
SAMPLES_PER_CHECKPOINT = 2
WARM_UP_BYTES = 1 << 20
WARM_UP_TOKENS = 100_000  # at most; in a small run a tenth of its tokens
MIB = 1 << 20

Figures = Mapping[str, Any]


class Churn:
    """Traffic through a forest with a budget; memory is read after every step."""

    def __init__(self, scope: Scope, budget_bytes: int, texts: Texts) -> None:
        self.forest = scope.forest(budget_bytes)
        self.memory_bytes = scope.memory_of(self.forest)
        self.meter = Meter(self.memory_bytes, budget_bytes)
        self.markers = Markers(self.forest, scope, self.meter)
        self.traffic = Traffic(self.forest, scope, texts, self.meter)
        self.num_tokens = 0
        self.max_resident_bytes = 0

    def advance(self, num_tokens: int, total: int) -> None:
        """Run steps until ``num_tokens`` tokens of ``total``."""
        while self.num_tokens < num_tokens:
            self.num_tokens += self.traffic.step(self.num_tokens / total)
            self.max_resident_bytes = max(self.max_resident_bytes, resident_bytes())

    def pass_checkpoint(self) -> None:
        """Check which markers are still known, then learn new ones."""
        self.markers.check()
        self.markers.learn()


def measure(scope: Scope, datasets: list[list[Tokens]], sizes: Sizes) -> Figures:
    """Return all figures of one scope; progress is shown on stderr.

    Raises:
        AssertionError: the final integrity check of the trees failed.
    """
    with _progress() as progress, without_gc():
        task = progress.add_task(scope.name, total=sizes.tokens, state="")
        texts = scope.outputs(datasets)
        _warm_up(scope, texts, min(WARM_UP_TOKENS, sizes.tokens // 10))
        baseline = resident_bytes(trim=True)
        churn = Churn(scope, sizes.budget_bytes, texts)
        series: dict[str, list[float]] = {"tokens": [], "memory_mib": [], "rss_mib": []}
        for sample in range(1, NUM_SAMPLES + 1):
            churn.advance(sizes.tokens * sample // NUM_SAMPLES, sizes.tokens)
            if sample % SAMPLES_PER_CHECKPOINT == 0:
                churn.pass_checkpoint()
            memory, resident = churn.memory_bytes() / MIB, (resident_bytes() - baseline) / MIB
            for name, value in zip(series, (churn.num_tokens, memory, resident), strict=True):
                series[name].append(value)
            state = f"memory {memory:.1f}, RSS {resident:.1f} of {sizes.budget_mb} MiB"
            progress.update(task, completed=churn.num_tokens, state=state, refresh=True)
        figures = _figures(churn, baseline, sizes)
        churn.forest.check_integrity()
    return {**figures, "series": series}


def _progress() -> Progress:
    """Return a display drawn only on update: a refresh thread would disturb the timing."""
    return Progress(
        TextColumn("{task.description:7}"),
        BarColumn(30),
        TextColumn("{task.completed:>12,.0f} tokens"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[state]}"),
        console=Console(stderr=True),
        auto_refresh=False,
    )


def _warm_up(scope: Scope, texts: Texts, num_tokens: int) -> None:
    """Run a small churn first: code pages and Python's own memory are not part of the forest."""
    churn = Churn(scope, WARM_UP_BYTES, texts)
    churn.markers.learn()
    churn.advance(num_tokens, num_tokens)
    churn.pass_checkpoint()


def _figures(churn: Churn, baseline: int, sizes: Sizes) -> dict[str, Any]:
    meter, markers, held = churn.meter, churn.markers, churn.forest.stats()
    kinds = [kind for kind in meter.cpu if kind != WITHDRAWAL]
    cpu, wall = (Times().include(times[kind] for kind in kinds) for times in (meter.cpu, meter.wall))
    return {
        "rss_max_ratio": (churn.max_resident_bytes - baseline) / sizes.budget_bytes,
        "memory_max_ratio": meter.max_bytes / sizes.budget_bytes,
        "memory_min_ratio": None if meter.min_bytes is None else meter.min_bytes / sizes.budget_bytes,
        "slow_calls": meter.slow,
        "slowest_call_ms": cpu.max_ms,
        "median_step_ms": meter.cpu["step"].quantile_ms(0.5),
        "slowest_call_wall_ms": wall.max_ms,
        "calls_over_limit_wall": wall.num_over(LIMIT_MS),
        "p99.9_wall_ms": wall.quantile_ms(0.999),
        "slowest_withdrawal_ms": meter.cpu[WITHDRAWAL].max_ms,
        "oldest_first": markers.in_order,
        "markers_known": markers.num_known,
        "markers_forgotten": markers.num_forgotten,
        "markers_refused": markers.num_refused,
        "budget_mb": sizes.budget_mb,
        "tokens": churn.num_tokens,
        "tokens_held": held.num_tokens,
        "outputs_learned": churn.traffic.num_learned,
        "tokens_per_s": churn.num_tokens / meter.total_s(),
        "calls": meter.figures(),
    }
