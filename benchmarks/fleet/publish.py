"""What publishing takes of an answer's path, and what becomes of outputs when there are too many."""

from __future__ import annotations

import math
import multiprocessing
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from typing import Any

import numpy as np

from agentspec.corpus.batch import ORIGIN_BYTES, Batch, Output
from agentspec.corpus.batch_log import BatchLog
from agentspec.corpus.corpus import Corpus, CorpusConfig, CorpusFigures
from agentspec.corpus.store import open_store
from agentspec.errors import ConfigError
from agentspec.forest import Forest, Tokens
from agentspec.replay.drafter import TENANT
from agentspec.reporting.report import Announce
from agentspec.stages import StageKey
from benchmarks.fleet.engine import LoggedErrors, running_corpus
from benchmarks.fleet.fleet import forest
from benchmarks.fleet.places import DRIVERS, empty_place
from benchmarks.fleet.recorded import VOCABULARY
from benchmarks.fleet.sizes import Sizes
from benchmarks.gateway.percentiles import at
from benchmarks.harness.process import in_fresh_process

Figures = dict[str, Any]

STAGE = StageKey(TENANT, ("published", "stage"))
OUTPUT_TOKENS = 400
OVERLOAD = 10
# own outputs, in the sizes' rate, and those of other engines, in what the CPU share can learn
LOADS = {"steady": (1, 0.5), "flood": (1, OVERLOAD), "overload": (OVERLOAD, OVERLOAD)}
NUM_LIVE = 8
STEP_TOKENS = 4
MODEL_S = 0.002  # of a step, in which the engine's thread waits for a device
_COUNTS = {
    "publisher": ("num_published", "num_dropped", "num_bytes", "num_failures"),
    "learner": ("num_tokens", "num_dropped", "num_missing", "num_failures", "cpu_s"),
}
_BATCH_OUTPUTS = 64
_CALIBRATION_TOKENS_PER_S = 1e5
_WARM_UP_S = 2.0
_RESERVE_S = 10.0  # of other engines' outputs
_NICE = 10
_SESSION = "9b2f4c1e-run"
_SAMPLE_S = 0.25


def measure(sizes: Sizes, announce: Announce) -> Figures:
    """Measure both drivers under all loads.

    The requests that take steps could finish some 32 outputs in a second. The engine publishes 50, or 500
    under overload.
    """
    by_driver: Figures = {}
    for driver in DRIVERS:
        announce(f"publish: {driver}")
        by_driver[driver] = in_fresh_process(_measured, driver, sizes)
    loads = [found[name] for found in by_driver.values() for name in LOADS]
    return {
        "publish_us_p50": max(load["publish_us_p50"] for load in loads),
        "publish_us_p99": max(load["publish_us_p99"] for load in loads),
        "num_errors": sum(found["num_errors"] for found in by_driver.values()),
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


def _measured(driver: str, sizes: Sizes) -> Figures:
    """Measure one driver. Loads take turns with steps without a store: the machine's speed varies."""
    errors, trees = LoggedErrors(), forest()
    with empty_place(driver) as location, running_corpus(location, trees) as corpus:
        learned_per_s = _learnable(corpus, location)
    loads = {name: Load(trees, own * sizes.publish_rate_per_s) for name, (own, _) in LOADS.items()}
    alone = LiveBatch(trees)
    duration_s = sizes.publish_s / sizes.publish_rounds
    for _ in range(sizes.publish_rounds):
        with empty_place(driver) as location:
            with running_corpus(location, trees) as corpus:
                time.sleep(CorpusConfig().join_s)  # without the limit of the CPU share
                for name, (_, others) in LOADS.items():
                    with _others(location, others * learned_per_s, duration_s) as num_sent:
                        time.sleep(_WARM_UP_S)
                        loads[name].run(corpus, num_sent, duration_s)
            with _others(location, OVERLOAD * learned_per_s, duration_s):  # they take as much of the machine
                time.sleep(_WARM_UP_S)
                alone.run(duration_s)
    return {
        "learnable_tokens_per_s": learned_per_s,
        "num_errors": errors.num_errors,
        **{name: load.figures() for name, load in loads.items()},
        "alone": alone.figures(),
    }


def _learnable(corpus: Corpus, location: str) -> float:
    """Return the tokens that the learner's share of a core learns in a second."""
    with _others(location, _CALIBRATION_TOKENS_PER_S, CorpusConfig().join_s + _WARM_UP_S):
        time.sleep(CorpusConfig().join_s + _WARM_UP_S)
        before = corpus.figures().learner
        time.sleep(_WARM_UP_S)
        after = corpus.figures().learner
    tokens_per_cpu_s = (after.num_tokens - before.num_tokens) / (after.cpu_s - before.cpu_s)
    return tokens_per_cpu_s * CorpusConfig().cpu_share


class Load:
    """Outputs that are published at a rate, between steps of a batch."""

    def __init__(self, trees: Forest, rate_per_s: float) -> None:
        self._rate_per_s = rate_per_s
        self._rng = np.random.default_rng(1)
        self._batch = LiveBatch(trees)
        self._publish_us: list[float] = []
        self._lag_s_max = 0.0
        self._spent_s = 0.0
        self._others_tokens = 0
        self._counts = defaultdict[tuple[str, str], float](int)

    def run(self, corpus: Corpus, num_sent: Callable[[], int], duration_s: float) -> None:
        """Publish for a while. Note the times, and what becomes of the outputs."""
        before, sent_before, begin_s = corpus.figures(), num_sent(), time.monotonic()
        for number in range(int(self._rate_per_s * duration_s)):
            tokens = _tokens(self._rng)
            while time.monotonic() < begin_s + number / self._rate_per_s:
                self._batch.step()
            share = partial(corpus.share, STAGE, tokens, session=_SESSION)  # as engines do
            self._publish_us.append(_us(share))
            if number % max(1, int(self._rate_per_s * _SAMPLE_S)) == 0:
                self._lag_s_max = max(self._lag_s_max, corpus.figures().learner.lag_s)
        for name, more in _differences(before, corpus.figures()).items():
            self._counts[name] += more
        self._others_tokens += num_sent() - sent_before
        self._spent_s += time.monotonic() - begin_s
        self._batch.end()

    def figures(self) -> Figures:
        """Return the times and the counts of all runs."""
        return {
            **_percentiles("publish_us", self._publish_us),
            **self._batch.figures(),
            "num_outputs": len(self._publish_us),
            "outputs_per_s": len(self._publish_us) / self._spent_s,
            "others_tokens_per_s": self._others_tokens / self._spent_s,
            "lag_s_max": self._lag_s_max,
            **{part: {name: self._counts[part, name] for name in names} for part, names in _COUNTS.items()},
        }


def _differences(before: CorpusFigures, after: CorpusFigures) -> dict[tuple[str, str], float]:
    return {
        (part, name): getattr(getattr(after, part), name) - getattr(getattr(before, part), name)
        for part, names in _COUNTS.items()
        for name in names
    }


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

    def run(self, duration_s: float) -> None:
        """Take steps for a while."""
        begin_s = time.monotonic()
        while time.monotonic() < begin_s + duration_s:
            self.step()
        self.end()

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
        self._num_steps = 0


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
