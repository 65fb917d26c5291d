"""A fresh engine joins a store: how soon it knows all, and what it accepts then, against a warm one."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from msgspec.structs import replace

from agentspec.corpus.batch import ORIGIN_BYTES, Batch, Output, split
from agentspec.corpus.batch_log import BatchLog
from agentspec.corpus.corpus import Corpus
from agentspec.corpus.snapshots import SnapshotWriter
from agentspec.corpus.store import open_store
from agentspec.forest import Forest
from agentspec.replay.calls import Call
from agentspec.replay.drafter import TENANT
from agentspec.replay.jobs import name_of
from agentspec.replay.replay import replay
from agentspec.replay.tally import total
from agentspec.reporting.report import Announce
from benchmarks.fleet.engine import STAGE, running_corpus
from benchmarks.fleet.fleet import DRAFT, STEP_S, Fleet, forest, in_turn
from benchmarks.fleet.places import DRIVERS, empty_place
from benchmarks.fleet.recorded import VOCABULARY, read_calls, read_outputs, stage_key
from benchmarks.fleet.sizes import Sizes
from benchmarks.harness.process import in_fresh_process
from benchmarks.harness.traces import files

Figures = dict[str, Any]
Accepted = dict[str, float]  # accepted tokens per step by set

LEARNED, HELD_OUT = 0, 1  # halves of the tasks
NUM_FIRST = 20  # requests after joining
_LIMIT_S = 120.0


def measure(traces: Path, sizes: Sizes, announce: Announce) -> Figures:
    """Fill the stores of both drivers, join each from a snapshot and from the log, and compare."""
    paths = files(traces)
    announce("join: a warm engine")
    warm = in_fresh_process(_warm, paths, sizes)
    by_start: Figures = {}
    for driver in DRIVERS:
        with empty_place(driver) as location:
            num_tokens = in_fresh_process(_fill, location, paths, sizes)
            for start in ("log", "snapshot"):
                announce(f"join: {driver}, {start}, {num_tokens} tokens")
                if start == "snapshot":
                    in_fresh_process(_write_snapshot, location)
                by_start[f"{driver}, {start}"] = in_fresh_process(_join, location, paths, sizes, num_tokens)
    for one in by_start.values():
        one["join_acceptance"] = acceptance(one["accepted_per_step"], warm)
    return {
        "join_s": max(one["join_s"] for one in by_start.values()),
        "join_acceptance": min(one["join_acceptance"] for one in by_start.values()),
        "join_acceptance_empty": acceptance(in_fresh_process(_empty, paths, sizes), warm),
        "warm_accepted_per_step": warm,
        "by_start": by_start,
    }


def acceptance(accepted: Accepted, warm: Accepted) -> float:
    """Return the accepted tokens per step, as a share of the warm engine's, all sets with equal weight."""
    return mean(accepted.values()) / mean(warm.values())


def _first_requests(trees: Forest, paths: Sequence[Path], sizes: Sizes) -> Accepted:
    """Return the accepted tokens per step of the first requests of each set, one after the other."""
    accepted = {}
    for path in paths:
        tally = total(_replayed(trees, path, read_calls(path, NUM_FIRST, HELD_OUT)).values())
        accepted[name_of(path)] = tally.accepted / tally.steps
    return accepted


def _replayed(trees: Forest, path: Path, calls: Sequence[Call]) -> Any:
    return replay(calls, Fleet(name_of(path), [trees], in_turn()))


# ---- in processes of their own ----


def _empty(paths: Sequence[Path], sizes: Sizes) -> Accepted:
    return _first_requests(forest(), paths, sizes)


def _warm(paths: Sequence[Path], sizes: Sizes) -> Accepted:
    """Answer some requests of the learned half, and learn the outputs of the others."""
    trees = forest()
    for path in paths:
        calls = read_calls(path, sizes.join_warm_calls, LEARNED)
        _replayed(trees, path, calls)
        done = {output_digest(path, call) for call in calls}
        for digest, output in read_outputs(path, sizes.join_calls, LEARNED).items():
            if digest not in done:
                trees.learn(output.stage, output.tokens, output.uses)
    return _first_requests(trees, paths, sizes)


def output_digest(path: Path, call: Call) -> bytes:
    """Return the digest of a call's output."""
    return Output(stage_key(name_of(path), call.stage), call.response).digest


def _fill(location: str, paths: Sequence[Path], sizes: Sizes) -> int:
    """Publish the outputs of the learned half, and others up to a number of tokens. Return that number."""
    outputs = [output for path in paths for output in read_outputs(path, sizes.join_calls, LEARNED).values()]
    outputs += _others(sizes.join_tokens - sum(len(output.tokens) for output in outputs))
    with closing(open_store(location)) as store:
        log = BatchLog(store, VOCABULARY)
        first = 0
        minute = int(time.time() // 60)
        for records in split(replace(output, minute=minute) for output in outputs):
            batch = Batch(bytes(ORIGIN_BYTES), first, records)
            store.publish(log.scope(TENANT), log.encode(TENANT, batch))
            first += len(records)
    return sum(len(output.tokens) for output in outputs)


def _others(num_tokens: int) -> Iterator[Output]:
    """Yield random outputs of another stage."""
    rng = np.random.default_rng(3)
    for _ in range(0, num_tokens, 400):
        yield Output(STAGE, rng.integers(0, 100_000, 400).astype(np.int32))


def _write_snapshot(location: str) -> None:
    with closing(open_store(location)) as store:
        writer = SnapshotWriter(BatchLog(store, VOCABULARY), os.urandom(8).hex())
        assert writer.write(TENANT)


def _join(location: str, paths: Sequence[Path], sizes: Sizes, num_tokens: int) -> Figures:
    """Join a store while a request runs. Then answer the first requests."""
    trees = forest()
    call = read_calls(paths[0], 1, HELD_OUT)[0]
    begin_s = time.monotonic()
    with running_corpus(location, trees) as corpus:
        spent_ms = _steps_until(lambda: _num_learned(corpus) >= num_tokens, trees, call)
        join_s = time.monotonic() - begin_s
        accepted = _first_requests(trees, paths, sizes)
        learner = corpus.figures().learner
    return {
        "join_s": join_s,
        "num_tokens": learner.num_tokens,
        "cpu_s": learner.cpu_s,
        "step_ms_p99": float(np.percentile(spent_ms, 99)),
        "step_ms_max": max(spent_ms),
        "accepted_per_step": accepted,
    }


def _num_learned(corpus: Corpus) -> int:
    return corpus.figures().learner.num_tokens


def _steps_until(is_done: Callable[[], bool], trees: Forest, call: Call) -> list[float]:
    """Let a request take steps. Return the milliseconds that each took of the engine's thread."""
    trees.start("running", stage_key("running", call.stage), call.prompt, draft=DRAFT, learn=False)
    spent_ms: list[float] = []
    deadline_s = time.monotonic() + _LIMIT_S
    while not spent_ms or not is_done():
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"the engine has not joined within {_LIMIT_S:g} s")
        said = call.response[len(spent_ms) % len(call.response) :][:1]
        begin_ns = time.perf_counter_ns()
        trees.step([("running", said)])
        spent_ms.append((time.perf_counter_ns() - begin_ns) / 1e6)
        time.sleep(STEP_S)
    trees.finish("running")
    return spent_ms
