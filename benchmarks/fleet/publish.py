"""What publishing takes of an answer's path, and what becomes of outputs when there are too many."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import count
from typing import Any

import numpy as np

from agentspec.corpus.batch import ORIGIN_BYTES, Batch
from agentspec.corpus.batch_log import BatchLog
from agentspec.corpus.corpus import Corpus, CorpusConfig, CorpusFigures
from agentspec.corpus.output import Output
from agentspec.corpus.store import open_store
from agentspec.forest import Tokens
from agentspec.replay.drafters.drafter import TENANT
from agentspec.reporting.process import in_fresh_process
from agentspec.reporting.report import Announce
from agentspec.stages import StageKey
from benchmarks.fleet.engine import LoggedErrors, forest, running_corpus
from benchmarks.fleet.places import DRIVERS, empty_place
from benchmarks.fleet.recorded import VOCABULARY
from benchmarks.fleet.sizes import Sizes
from benchmarks.gateway.percentiles import at

Figures = dict[str, Any]

STAGE = StageKey(TENANT, ("published", "stage"))
OUTPUT_TOKENS = 400
STEADY_SHARE = 0.5  # of what the learner can learn
OVERLOAD = 10
_BATCH_OUTPUTS = 64
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
        "by_driver": by_driver,
    }


def _measured(location: str, sizes: Sizes) -> Figures:
    errors = LoggedErrors()
    with running_corpus(location, forest()) as corpus:
        learned_per_s = _learnable(corpus, location)
        found: Figures = {"learnable_tokens_per_s": learned_per_s}
        for name, times in (("steady", STEADY_SHARE), ("overload", OVERLOAD)):
            with _others(location, times * learned_per_s):
                time.sleep(_WARM_UP_S)
                rate_per_s = sizes.publish_rate_per_s * max(times, 1)
                found[name] = _under_load(corpus, rate_per_s, sizes.publish_s)
            found[name] |= {"others_tokens_per_s": times * learned_per_s, "num_errors": errors.num_errors}
    return found


def _learnable(corpus: Corpus, location: str) -> float:
    """Return the tokens that the learner's share of a core learns in a second."""
    with _others(location, 1e5):
        time.sleep(CorpusConfig().join_s + _WARM_UP_S)
        before = corpus.figures().learner
        time.sleep(_WARM_UP_S)
        after = corpus.figures().learner
    tokens_per_cpu_s = (after.num_tokens - before.num_tokens) / (after.cpu_s - before.cpu_s)
    return tokens_per_cpu_s * CorpusConfig().cpu_share


def _under_load(corpus: Corpus, rate_per_s: float, duration_s: float) -> Figures:
    """Publish at a rate. Return the times of the calls, and what became of the outputs."""
    before = corpus.figures()
    spent_us, lags_s = [], [0.0]
    rng = np.random.default_rng(1)
    begin_s = time.monotonic()
    for number in range(int(rate_per_s * duration_s)):
        tokens = _tokens(rng)
        time.sleep(max(0.0, begin_s + number / rate_per_s - time.monotonic()))
        begin_ns = time.perf_counter_ns()
        corpus.publish(Output(STAGE, tokens))
        spent_us.append((time.perf_counter_ns() - begin_ns) / 1e3)
        if number % max(1, int(rate_per_s * _SAMPLE_S)) == 0:
            lags_s.append(corpus.figures().learner.lag_s)
    after = corpus.figures()
    values = np.array(spent_us)
    return {
        **{f"publish_us_p{percentile}": at(values, percentile) for percentile in (50, 90, 99, 99.9)},
        "publish_us_max": float(values.max()),
        "num_outputs": len(spent_us),
        "outputs_per_s": len(spent_us) / (time.monotonic() - begin_s),
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


# ---- other engines ----


@contextmanager
def _others(location: str, tokens_per_s: float) -> Iterator[None]:
    """Let another process publish so many tokens a second, as far as it can."""
    process = multiprocessing.get_context("spawn").Process(
        target=_flood, args=(location, tokens_per_s), daemon=True
    )
    process.start()
    try:
        yield
    finally:
        process.kill()
        process.join()


def _flood(location: str, tokens_per_s: float) -> None:
    rng = np.random.default_rng(os.getpid())
    origin = os.urandom(ORIGIN_BYTES)
    with closing(open_store(location)) as store:
        log = BatchLog(store, VOCABULARY)
        begin_s = time.monotonic()
        for number in count():
            records = tuple(Output(STAGE, _tokens(rng)) for _ in range(_BATCH_OUTPUTS))
            batch = Batch(origin, number * _BATCH_OUTPUTS, records)
            store.publish(log.scope(TENANT), log.encode(TENANT, batch))
            due_s = begin_s + (number + 1) * _BATCH_OUTPUTS * OUTPUT_TOKENS / tokens_per_s
            time.sleep(max(0.0, due_s - time.monotonic()))


def _tokens(rng: np.random.Generator) -> Tokens:
    return rng.integers(0, 100_000, OUTPUT_TOKENS).astype(np.int32)
