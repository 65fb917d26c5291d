"""What publishing takes of an answer's path, and what becomes of outputs when there are too many."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from itertools import count
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
STEADY_SHARE = 0.5  # of what the learner can learn
OVERLOAD = 10
NUM_LIVE = 8
STEP_TOKENS = 4
MODEL_S = 0.002  # of a step, in which the engine's thread waits for a device
_BATCH_OUTPUTS = 64
_CALIBRATION_TOKENS_PER_S = 1e5
_WARM_UP_S = 2.0
_SAMPLE_S = 0.25


def measure(sizes: Sizes, announce: Announce) -> Figures:
    """Measure both drivers, at a steady rate and at ten times the rate that the CPU share can learn."""
    by_driver: Figures = {}
    for driver in DRIVERS:
        announce(f"publish: {driver}")
        with empty_place(driver) as location:
            by_driver[driver] = in_fresh_process(_measured, location, sizes)
    loads = [load for found in by_driver.values() for load in (found["steady"], found["overload"])]
    return {
        "publish_us_p50": max(load["publish_us_p50"] for load in loads),
        "publish_us_p99": max(load["publish_us_p99"] for load in loads),
        "num_errors": sum(load["num_errors"] for load in loads),
        "lag_s_max": max(load["lag_s_max"] for load in loads),
        "step_p99_vs_alone": max(
            found["overload"]["step_us_p99"] / found["alone"]["step_us_p99"] for found in by_driver.values()
        ),
        "by_driver": by_driver,
    }


def _measured(location: str, sizes: Sizes) -> Figures:
    errors, trees = LoggedErrors(), forest()
    alone = _alone(trees, sizes.publish_s)
    with running_corpus(location, trees) as corpus:
        learned_per_s = _learnable(corpus, location)
        found: Figures = {"alone": alone, "learnable_tokens_per_s": learned_per_s}
        for name, times in (("steady", STEADY_SHARE), ("overload", OVERLOAD)):
            with _others(location, times * learned_per_s) as num_sent:
                time.sleep(_WARM_UP_S)
                before, begin_s = num_sent(), time.monotonic()
                rate_per_s = sizes.publish_rate_per_s * max(times, 1)
                found[name] = _under_load(corpus, trees, rate_per_s, sizes.publish_s)
                found[name]["others_tokens_per_s"] = (num_sent() - before) / (time.monotonic() - begin_s)
            found[name]["num_errors"] = errors.num_errors
    return found


def _alone(trees: Forest, duration_s: float) -> Figures:
    """Take steps without a store. Return their times."""
    step_us: list[float] = []
    batch = LiveBatch(trees)
    begin_s = time.monotonic()
    while time.monotonic() < begin_s + duration_s:
        time.sleep(MODEL_S)
        step_us.append(_us(batch.step))
    batch.end()
    return _percentiles("step_us", step_us)


def _learnable(corpus: Corpus, location: str) -> float:
    """Return the tokens that the learner's share of a core learns in a second."""
    with _others(location, _CALIBRATION_TOKENS_PER_S):
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
    step_us: list[float] = []
    lags_s = [0.0]
    rng = np.random.default_rng(1)
    batch = LiveBatch(trees)
    begin_s = time.monotonic()
    for number in range(int(rate_per_s * duration_s)):
        tokens = _tokens(rng)
        while time.monotonic() < begin_s + number / rate_per_s:
            time.sleep(MODEL_S)
            step_us.append(_us(batch.step))
        publish_us.append(_us(partial(corpus.share, STAGE, tokens)))  # as engines do
        if number % max(1, int(rate_per_s * _SAMPLE_S)) == 0:
            lags_s.append(corpus.figures().learner.lag_s)
    after = corpus.figures()
    batch.end()
    return {
        **_percentiles("publish_us", publish_us),
        **_percentiles("step_us", step_us),
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

    def step(self) -> None:
        """Take a step of all requests. New ones take their places when an output has its length."""
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
def _others(location: str, tokens_per_s: float) -> Iterator[Callable[[], int]]:
    """Let another process publish so many tokens a second, as far as it can. Yield what it has sent."""
    context = multiprocessing.get_context("spawn")
    num_sent = context.Value("q", 0)
    process = context.Process(target=_flood, args=(location, tokens_per_s, num_sent), daemon=True)
    process.start()
    try:
        while num_sent.value == 0:
            if not process.is_alive():
                raise ConfigError(f"no other process can publish to {location!r}")
            time.sleep(0.05)
        yield lambda: num_sent.value
    finally:
        process.kill()
        process.join()


def _flood(location: str, tokens_per_s: float, num_sent: Any) -> None:
    rng = np.random.default_rng(os.getpid())
    origin = os.urandom(ORIGIN_BYTES)
    with closing(open_store(location)) as store:
        log = BatchLog(store, VOCABULARY)
        begin_s = time.monotonic()
        for number in count():
            records = tuple(Output(STAGE, _tokens(rng)) for _ in range(_BATCH_OUTPUTS))
            batch = Batch(origin, number * _BATCH_OUTPUTS, records)
            store.publish(log.scope(TENANT), log.encode(TENANT, batch))
            num_sent.value += _BATCH_OUTPUTS * OUTPUT_TOKENS
            due_s = begin_s + num_sent.value / tokens_per_s
            time.sleep(max(0.0, due_s - time.monotonic()))


def _tokens(rng: np.random.Generator) -> Tokens:
    return rng.integers(0, 100_000, OUTPUT_TOKENS).astype(np.int32)
