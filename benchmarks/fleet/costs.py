"""The cost of each step on an output's way through a Redis server, and the sizes that recorded outputs have.

CPU time is counted, not time: of this process's thread, and of the server as it reports it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from agentspec.config import ForestConfig
from agentspec.corpus.batch import ORIGIN_BYTES, Batch, Output
from agentspec.corpus.batch_log import BatchLog
from agentspec.corpus.snapshots import SnapshotWriter
from agentspec.corpus.store import open_store
from agentspec.draft import SHARED, Source
from agentspec.forest import Forest
from agentspec.replay.drafter import TENANT
from agentspec.replay.jobs import name_of
from agentspec.reporting.report import Announce
from benchmarks.fleet.fleet import Replica, Sharing
from benchmarks.fleet.places import RedisServer, redis_server
from benchmarks.fleet.recorded import VOCABULARY, each_output
from benchmarks.fleet.sizes import Sizes
from benchmarks.harness.process import in_fresh_process
from benchmarks.harness.traces import files

Figures = dict[str, Any]

BATCHES = (1, 4, 16, 64, 256)  # outputs that a replica gathers
TENANTS = (1, 100)
_NUM_LOOKS = 200
_NO_LIMIT_BYTES = 1 << 40


def measure(traces: Path, sizes: Sizes, announce: Announce) -> Figures:
    """Send the first outputs of all sets, mixed, in batches of several sizes, and learn them."""
    paths = files(traces)
    announce(f"costs: up to {sizes.costs_calls} outputs of each of {len(paths)} sets")
    return in_fresh_process(_measured, paths, sizes)


def _measured(paths: Sequence[Path], sizes: Sizes) -> Figures:
    by_set = {name_of(path): list(each_output(path, sizes.costs_calls)) for path in paths}
    outputs = [output for one in by_set.values() for output in one]
    random.Random(1).shuffle(outputs)
    by_batch = {}
    for num_outputs in BATCHES:
        with redis_server() as server:
            by_batch[str(num_outputs)] = passage(server, outputs, num_outputs)
    with redis_server() as server:
        looks = look_server_us(server, outputs[0])
    return {
        "num_outputs": len(outputs),
        "tokens_per_output": mean(len(output.tokens) for output in outputs),
        "tokens_per_output_by_set": {
            name: mean(len(output.tokens) for output in one) for name, one in by_set.items()
        },
        "trees_bytes_per_token": tree_bytes(SHARED, outputs),
        "tenant_tree_bytes_per_token": tree_bytes((Source.TENANT,), outputs),
        "look_server_us": looks,
        "by_batch": by_batch,
    }


def look_server_us(server: RedisServer, output: Output) -> dict[str, float]:
    """Return the server's CPU for a look at its tenants, by their number."""
    found = {}
    with closing(open_store(server.url)) as store:
        log = BatchLog(store, VOCABULARY)

        def look() -> None:
            for _ in range(_NUM_LOOKS):
                log.tenants()

        batch = Batch(bytes(ORIGIN_BYTES), 0, (output,))
        for number in range(max(TENANTS)):
            tenant = f"tenant-{number}"
            store.publish(log.scope(tenant), log.encode(tenant, batch))
            if number + 1 in TENANTS:
                found[str(number + 1)] = cpu_of(look, server).server_us / _NUM_LOOKS
    return found


def tree_bytes(sources: tuple[Source, ...], outputs: Sequence[Output]) -> float:
    """Return the bytes that each token of some outputs takes in trees without a budget."""
    budgets = ("stage_limit_bytes", "tenant_limit_bytes", "total_limit_bytes")
    trees = Forest(ForestConfig(sources=sources, **dict.fromkeys(budgets, _NO_LIMIT_BYTES)))
    for output in outputs:
        trees.learn(output.stage, output.tokens)
    return trees.memory_bytes() / sum(len(output.tokens) for output in outputs)


def passage(server: RedisServer, outputs: Sequence[Output], num_outputs: int) -> Figures:
    """Let one replica publish outputs, so many at a time, and another learn them. Return what each takes."""
    with closing(open_store(server.url)) as store:
        log = BatchLog(store, VOCABULARY)
        first, second = (  # with the trees of an engine
            Replica(number, Forest(), log, Sharing(window_s=0.0), time.monotonic) for number in (1, 2)
        )
        assert first.publisher is not None
        publisher = first.publisher

        def publish() -> None:
            for begin in range(0, len(outputs), num_outputs):
                for output in outputs[begin : begin + num_outputs]:
                    publisher.publish(output)
                first.pump()
            first.pump(is_last=True)

        spent = {
            "publish": cpu_of(publish, server),
            "learn": cpu_of(second.learn, server),
            "snapshot": cpu_of(lambda: SnapshotWriter(log, "benchmark").write(TENANT), server),
        }
        num_entries = store.stats()[log.scope(TENANT)].num_entries
    num_tokens = sum(len(output.tokens) for output in outputs)
    return {
        "num_entries": num_entries,
        "bytes_per_output": first.num_bytes / len(outputs),
        "publish_us_per_output": spent["publish"].own_us / len(outputs),
        "publish_server_us_per_entry": spent["publish"].server_us / num_entries,
        "learn_us_per_token": spent["learn"].own_us / num_tokens,
        "learn_server_us_per_entry": spent["learn"].server_us / num_entries,
        "snapshot_us_per_output": spent["snapshot"].own_us / len(outputs),
    }


@dataclass(frozen=True, slots=True)
class Spent:
    """CPU time in microseconds, of the calling thread and of the server."""

    own_us: float
    server_us: float


def cpu_of(work: Callable[[], object], server: RedisServer) -> Spent:
    """Return the CPU time that some work takes."""
    server_s, own_s = server.cpu_s, time.thread_time()
    work()
    return Spent((time.thread_time() - own_s) * 1e6, (server.cpu_s - server_s) * 1e6)
