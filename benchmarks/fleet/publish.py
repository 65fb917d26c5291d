"""What publishing takes of an answer's path, and what becomes of outputs when there are too many."""

from __future__ import annotations

import math
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from typing import Any

import numpy as np

from agentspec.corpus.batch import ORIGIN_BYTES, Batch
from agentspec.corpus.batch_log import BatchLog
from agentspec.corpus.corpus import Corpus, CorpusConfig, CorpusFigures
from agentspec.corpus.output import Output
from agentspec.corpus.store import open_store
from agentspec.errors import ConfigError
from agentspec.forest import Forest, Tokens
from agentspec.replay.drafters.drafter import TENANT
from agentspec.reporting.process import in_fresh_process
from agentspec.reporting.report import Announce
from agentspec.stages import StageKey
from benchmarks.fleet.engine import LoggedErrors, running_corpus
from benchmarks.fleet.fleet import forest
from benchmarks.fleet.places import DRIVERS, empty_place
from benchmarks.fleet.recorded import VOCABULARY
from benchmarks.fleet.sizes import Sizes
from benchmarks.gateway.percentiles import at

Figures = dict[str, Any]

STAGE = StageKey(TENANT, ("published", "stage"))
OUTPUT_TOKENS = 400
OVERLOAD = 10
# own outputs, in the sizes' rate, and those of other engines, in what the CPU share can learn
LOADS = {"steady": (1, 0.5), "flood": (1, OVERLOAD), "overload": (OVERLOAD, OVERLOAD)}
NUM_LIVE = 8
STEP_TOKENS = 4
MODEL_S = 0.002  # of a step, in which the engine's thread waits for a device
_BATCH_OUTPUTS = 64
_CALIBRATION_TOKENS_PER_S = 1e5
_WARM_UP_S = 2.0
_RESERVE_S = 10.0  # of other engines' outputs
_NICE = 10
_SESSION = "9b2f4c1e-run"
_SAMPLE_S = 0.25


def measure(sizes: Sizes, announce: Announce) -> Figures:
    """Measure both drivers under all loads.

    The requests that take steps could finish some 32 outputs in a second. The engine publishes 50, or 500 under
    overload.
    """
    by_driver: Figures = {}
    for driver in DRIVERS:
        announce(f"publish: {driver}")
        with empty_place(driver) as location:
            by_driver[driver] = in_fresh_process(_measured, location, sizes)
    loads = [found[name] for found in by_driver.values() for name in LOADS]
    return {
        "publish_us_p50": max(load["publish_us_p50"] for load in loads),
        "publish_us_p99": max(load["publish_us_p99"] for load in loads),
        "num_errors": sum(load["num_errors"] for load in loads),
        "lag_s_max": max(load["lag_s_max"] for load in loads),
        "step_p99_vs_alone": _vs_alone(by_driver, "flood", "step_us_p99"),
        "trees_p99_vs_alone": _vs_alone(by_driver, "flood", "trees_us_p99"),
        "overload_step_p99_vs_alone": _vs_alone(by_driver, "overload", "step_us_p99"),
        "by_driver": by_driver,
    }


def _vs_alone(by_driver: Figures, load: str, name: str) -> float:
    """Return a figure of the steps under a load, by that of steps without a store: the worse driver's."""
    vs: float = max(found[load][name] / found["alone"][name] for found in by_driver.values())
    return vs


def _measured(location: str, sizes: Sizes) -> Figures:
    errors, trees = LoggedErrors(), forest()
    with running_corpus(location, trees) as corpus:
        learned_per_s = _learnable(corpus, location)
        found: Figures = {"learnable_tokens_per_s": learned_per_s}
        for name, (own, others) in LOADS.items():
            with _others(location, others * learned_per_s, sizes.publish_s) as num_sent:
                time.sleep(_WARM_UP_S)
                before, begin_s = num_sent(), time.monotonic()
                found[name] = _under_load(corpus, trees, own * sizes.publish_rate_per_s, sizes.publish_s)
                found[name]["others_tokens_per_s"] = (num_sent() - before) / (time.monotonic() - begin_s)
            found[name]["num_errors"] = errors.num_errors
    with _others(location, OVERLOAD * learned_per_s, sizes.publish_s):  # they take as much of the machine
        time.sleep(_WARM_UP_S)
        found["alone"] = _alone(trees, sizes.publish_s)  # last: with as much in the trees
    return found


def _alone(trees: Forest, duration_s: float) -> Figures:
    """Take steps without a store. Return their times."""
    batch = LiveBatch(trees)
    begin_s = time.monotonic()
    while time.monotonic() < begin_s + duration_s:
        batch.step()
    batch.end()
    return batch.figures()


def _learnable(corpus: Corpus, location: str) -> float:
    """Return the tokens that the learner's share of a core learns in a second."""
    with _others(location, _CALIBRATION_TOKENS_PER_S, CorpusConfig().join_s + _WARM_UP_S):
        time.sleep(CorpusConfig().join_s + _WARM_UP_S)
        before = corpus.figures().learner
        time.sleep(_WARM_UP_S)
        after = corpus.figures().learner
    tokens_per_cpu_s = (after.num_tokens - before.num_tokens) / (after.cpu_s - before.cpu_s)
    return tokens_per_cpu_s * CorpusConfig().cpu_share


def _under_load(corpus: Corpus, trees: Forest, rate_per_s: float, duration_s: float) -> Figures:
    """Publish at a rate, between steps of a batch. Return the times, and what became of the outputs."""
    before = corpus.figures()
    publish_us: list[float] = []
    lags_s = [0.0]
    rng = np.random.default_rng(1)
    batch = LiveBatch(trees)
    begin_s = time.monotonic()
    for number in range(int(rate_per_s * duration_s)):
        tokens = _tokens(rng)
        while time.monotonic() < begin_s + number / rate_per_s:
            batch.step()
        publish_us.append(_us(partial(corpus.share, STAGE, tokens, session=_SESSION)))  # as engines do
        if number % max(1, int(rate_per_s * _SAMPLE_S)) == 0:
            lags_s.append(corpus.figures().learner.lag_s)
    after = corpus.figures()
    batch.end()
    return {
        **_percentiles("publish_us", publish_us),
        **batch.figures(),
        "num_outputs": len(publish_us),
        "outputs_per_s": len(publish_us) / (time.monotonic() - begin_s),
        "lag_s_max": max(lags_s),
        **_differences(before, after),
    }


def _differences(before: CorpusFigures, after: CorpusFigures) -> Figures:
    publisher = {
        name: getattr(after.publisher, name) - getattr(before.publisher, name)
        for name in ("num_published", "num_dropped", "num_bytes", "num_failures")
    }
    learner = {
        name: getattr(after.learner, name) - getattr(before.learner, name)
        for name in ("num_tokens", "num_dropped", "num_missing", "num_failures", "cpu_s")
    }
    return {"publisher": publisher, "learner": learner}


class LiveBatch:
    """Requests that take steps, as in an engine's loop: an answer ends between two steps."""

    def __init__(self, trees: Forest) -> None:
        self._trees = trees
        self._rng = np.random.default_rng(2)
        self._num_steps = 0
        self._names: list[str] = []
        self._step_us: list[float] = []
        self._trees_us: list[float] = []

    def step(self) -> None:
        """Take a step of all requests, and time it: the model's part, then the trees'."""
        begin_ns = time.perf_counter_ns()
        time.sleep(MODEL_S)
        self._trees_us.append(_us(self._take))
        self._step_us.append((time.perf_counter_ns() - begin_ns) / 1e3)

    def figures(self) -> Figures:
        """Return the times of all steps."""
        return {**_percentiles("step_us", self._step_us), **_percentiles("trees_us", self._trees_us)}

    def _take(self) -> None:
        """Take the outputs of a step, and draft. New requests take over when an output has its length."""
        if self._num_steps * STEP_TOKENS % OUTPUT_TOKENS == 0:
            self.end()
            self._names = [f"live-{number}" for number in range(NUM_LIVE)]
            for name in self._names:
                self._trees.start(name, STAGE, _tokens(self._rng), learn=False)
        self._num_steps += 1
        said = _tokens(self._rng)
        self._trees.step(
            [(name, said[i * STEP_TOKENS :][:STEP_TOKENS]) for i, name in enumerate(self._names)]
        )

    def end(self) -> None:
        """End the requests."""
        for name in self._names:
            self._trees.finish(name)
        self._names = []


def _us(work: Callable[[], object]) -> float:
    begin_ns = time.perf_counter_ns()
    work()
    return (time.perf_counter_ns() - begin_ns) / 1e3


def _percentiles(name: str, spent: Sequence[float]) -> Figures:
    values = np.array(spent)
    return {f"{name}_p{percentile}": at(values, percentile) for percentile in (50, 90, 99, 99.9)}


# ---- other engines ----


@contextmanager
def _others(location: str, tokens_per_s: float, duration_s: float) -> Iterator[Callable[[], int]]:
    """Let another process publish ``tokens_per_s``, as far as it can, for that time and a reserve.

    Yields a function that returns the tokens sent so far.
    """
    context = multiprocessing.get_context("spawn")
    num_sent = context.Value("q", 0)
    num_batches = math.ceil(tokens_per_s * (duration_s + _RESERVE_S) / _BATCH_OUTPUTS / OUTPUT_TOKENS)
    arguments = (location, tokens_per_s, num_batches, num_sent)
    process = context.Process(target=_flood, args=arguments, daemon=True)
    process.start()
    try:
        while num_sent.value == 0:
            if not process.is_alive():
                raise ConfigError(f"no other process can publish to {location!r}")
            time.sleep(0.05)
        yield lambda: num_sent.value
        if not process.is_alive():
            raise ConfigError("the other engines' outputs were used up before the end: measure again")
    finally:
        process.kill()
        process.join()


def _flood(location: str, tokens_per_s: float, num_batches: int, num_sent: Any) -> None:
    """Publish batches that are encoded before: other engines take no processor of the measured one's."""
    os.nice(_NICE)
    with closing(open_store(location)) as store:
        log = BatchLog(store, VOCABULARY)
        encoded = _encoded(log, num_batches)
        begin_s = time.monotonic()
        for batch in encoded:
            store.publish(log.scope(TENANT), batch)
            num_sent.value += _BATCH_OUTPUTS * OUTPUT_TOKENS
            due_s = begin_s + num_sent.value / tokens_per_s
            time.sleep(max(0.0, due_s - time.monotonic()))


def _encoded(log: BatchLog, num_batches: int) -> list[bytes]:
    rng, origin = np.random.default_rng(os.getpid()), os.urandom(ORIGIN_BYTES)
    encoded = []
    for number in range(num_batches):
        records = tuple(Output(STAGE, _tokens(rng)) for _ in range(_BATCH_OUTPUTS))
        encoded.append(log.encode(TENANT, Batch(origin, number * _BATCH_OUTPUTS, records)))
    return encoded


def _tokens(rng: np.random.Generator) -> Tokens:
    return rng.integers(0, 100_000, OUTPUT_TOKENS).astype(np.int32)
