"""Time to save and load a forest, and the effect on decode steps meanwhile.

Recorded outputs fill the trees of some stages. 64 live requests decode: undisturbed, while the forest is
saved, and while a new one loads it.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
from rich.table import Table

from agentspec import DraftConfig, Forest, ForestConfig, StageKey
from agentspec._native import ForestCore
from agentspec.reporting.report import Announce, Report
from benchmarks.core import corpus
from benchmarks.core.requests import Request, next_batch, requests
from benchmarks.core.sizes import Sizes
from benchmarks.harness.process import without_gc

NUM_LIVE = 64
PROMPT_TOKENS = 2_048
OUTPUT_TOKENS = 8_192
FORWARD_PASS_S = 1e-3  # pause between two steps, for the model
ALONE_S = 3.0
NUM_SAVES = 10  # one takes only a few steps
PIECE_TOKENS = 256  # learned before others get the lock
GIB = 1 << 30
CONFIG = ForestConfig(stage_limit_bytes=GIB, tenant_limit_bytes=2 * GIB, total_limit_bytes=2 * GIB)
STAGES = tuple(StageKey("benchmark", ("workflow", f"stage-{i}")) for i in range(4))

Figures = dict[str, float]


class DecodeLoop:
    """Live requests of all stages that decode, FORWARD_PASS_S between two steps, until the block ends."""

    def __init__(self, forest: Forest, live: list[Request]) -> None:
        self._forest = forest
        self._live = live
        self._steps_s: list[float] = []
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> DecodeLoop:
        for i, request in enumerate(self._live):
            stage = STAGES[i % len(STAGES)]
            draft = DraftConfig(rule="learned", min_prob=0.02)
            self._forest.start(request.name, stage, request.prompt, draft=draft)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        for request in self._live:
            self._forest.finish(request.name, learn=False)

    def beside(self, work: Callable[[], object], num_times: int = 1) -> Figures:
        """Return the work's time, the mean of ``num_times`` runs, and the times of the steps meanwhile."""
        first, begin = len(self._steps_s), time.perf_counter()
        for _ in range(num_times):
            work()
        total_s = time.perf_counter() - begin
        while len(self._steps_s) == first:  # short work may end before the first step
            time.sleep(FORWARD_PASS_S)
        steps_ms = [1e3 * step_s for step_s in self._steps_s[first:]]
        return {"s": total_s / num_times, "num_steps": len(steps_ms), **_spread(steps_ms)}

    def _run(self) -> None:
        while not self._is_over.is_set():
            batch = next_batch(self._live)
            begin = time.perf_counter()
            self._forest.step(batch.updates, 32)
            self._steps_s.append(time.perf_counter() - begin)
            time.sleep(FORWARD_PASS_S)


def wait(outputs: list[np.ndarray]) -> dict[str, Figures]:
    """Return CPU times of the pieces of work of which a decode step waits for at most one.

    The tree holds all outputs. Wall time would include other processes on the same core.
    """
    core = ForestCore(CONFIG.depth + 1, CONFIG.total_limit_bytes)
    index = core.create_index(core.create_group(CONFIG.tenant_limit_bytes), CONFIG.stage_limit_bytes)
    indices = np.array([index], np.uint64)
    learned_ms: list[float] = []
    read_ms: list[float] = []
    for output in outputs:
        begin = time.thread_time()
        core.learn(indices, output[:PIECE_TOKENS])
        learned_ms.append(1e3 * (time.thread_time() - begin))
    num_read = 1
    while num_read:
        begin = time.thread_time()
        num_read = len(core.read_outputs(index, not read_ms)[1])
        read_ms.append(1e3 * (time.thread_time() - begin))
    return {"wait_for_save": _spread(read_ms), "wait_for_load": _spread(learned_ms)}


def _spread(times_ms: list[float]) -> Figures:
    """Return the median, 99th percentile and maximum."""
    return {
        "ms_median": float(np.median(times_ms)),
        "ms_p99": float(np.quantile(times_ms, 0.99)),
        "ms_max": max(times_ms),
    }


def measure(outputs: list[np.ndarray], live: list[Request], path: Path) -> dict[str, Figures]:
    """Return the seconds that saving and loading take, and the times of decode steps meanwhile."""
    forest = Forest(CONFIG)
    for i, output in enumerate(outputs):
        forest.learn(STAGES[i % len(STAGES)], output)
    alone_s = time.perf_counter()
    saved = forest.save(path, vocabulary="benchmark")
    figures = {"save": {"s": time.perf_counter() - alone_s}}
    alone_s = time.perf_counter()
    Forest(CONFIG).load(path, vocabulary="benchmark")
    figures["load"] = {"s": time.perf_counter() - alone_s}
    with without_gc(), DecodeLoop(forest, live) as loop:
        figures["steps_alone"] = loop.beside(lambda: time.sleep(ALONE_S))
        figures["save_beside_steps"] = loop.beside(
            lambda: forest.save(path, vocabulary="benchmark"), num_times=NUM_SAVES
        )
    new = Forest(CONFIG)
    with without_gc(), DecodeLoop(new, live) as loop:
        figures["load_beside_steps"] = loop.beside(lambda: new.load(path, vocabulary="benchmark"))
    figures["forest"] = {
        "num_trees": saved.num_trees,
        "num_outputs": saved.num_outputs,
        "num_tokens": saved.num_tokens,
        "file_mb": saved.num_bytes / 1e6,
        "tree_mb": forest.memory_bytes() / 1e6,
    }
    return figures


def make_report(traces: Path, sizes: Sizes, announce: Announce) -> Report:
    """Measure, and return the report.

    Raises:
        ConfigError: the traces are missing or too small.
    """
    announce("reading and tokenizing traces")
    found = corpus.load(traces, sizes)
    live = requests(found, NUM_LIVE, PROMPT_TOKENS, OUTPUT_TOKENS)
    announce(f"saves and loads beside {NUM_LIVE} live requests")
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(found.mixed, live, Path(folder) / "forest") | wait(found.mixed)
    table = Table(title="saving and loading a forest", title_justify="left")
    table.add_column("", no_wrap=True)
    table.add_column("figures")
    for work, by_name in figures.items():
        table.add_row(work, "  ".join(f"{name} {value:,.2f}" for name, value in by_name.items()))
    return Report(
        figures=figures, table=table, origin={"arguments": {"traces": traces.name}, "sizes": asdict(sizes)}
    )
