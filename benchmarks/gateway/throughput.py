"""The processor time that a gateway costs: requests, and chunks of streams, per second of it.

The cost of a chunk includes its share of its stream's request.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from statistics import median
from typing import Any

import uvloop

from agentspec.reporting.report import Announce
from benchmarks.gateway.client import Exchange, Pool, Target
from benchmarks.gateway.latency import request_for, turned
from benchmarks.gateway.plan import Plan
from benchmarks.gateway.sides import LITELLM, OURS, Bench, Setup, Side
from benchmarks.gateway.sizes import Sizes
from benchmarks.harness.process import without_gc

PLAN = Plan(num_chunks=50)
CHUNK_GAP_MS = 25
NUM_BODIES = 16
SLACK_S = 60.0
CLOCK_TICK_S = 0.01  # resolution of processor time


@dataclass(frozen=True, slots=True)
class Counted:
    """Results of one round on one side.

    Attributes:
        num_done: requests, or chunks as the stub sent them.
        num_parts: number of pieces in which the clients received the responses.
        wall_s: wall time.
        cpu_s: processor time of the gateway's processes; None without a gateway.
        others: average number of cores that other processes kept busy.
    """

    num_done: int
    num_parts: int
    num_errors: int
    wall_s: float
    cpu_s: float | None = None
    others: float = 0.0

    @property
    def per_core(self) -> float:
        """Requests or chunks per second of processor time."""
        assert self.cpu_s
        return self.num_done / self.cpu_s


def measure(setup: Setup, sizes: Sizes, announce: Announce) -> dict[str, Any]:
    """Return the figures for the JSON.

    Raises:
        AgentSpecError: a process did not start.
    """
    with setup.running([PLAN.model, _stream(sizes).model], announce) as bench:
        requests: dict[str, list[Counted]] = {name: [] for name in bench.sides}
        chunks: dict[str, list[Counted]] = {name: [] for name in bench.sides}
        for side in bench.sides.values():
            announce(f"throughput, warming up {side.name}")
            bench.in_client(_ask, side.target, sizes.num_clients, sizes.warm_up_s, sizes.body_bytes, False)
        for number in range(sizes.num_rounds):
            for name in turned(list(bench.sides), number):
                announce(f"throughput, round {number + 1}, {name}")
                requests[name].append(_requests(bench, bench.sides[name], sizes))
                chunks[name].append(_chunks(bench, bench.sides[name], sizes))
    return figures(requests, chunks)


def _requests(bench: Bench, side: Side, sizes: Sizes) -> Counted:
    options = (sizes.num_clients, sizes.throughput_s, sizes.body_bytes, side.is_faithful)
    return _timed(bench, side, lambda: bench.in_client(_ask, side.target, *options))


def _chunks(bench: Bench, side: Side, sizes: Sizes) -> Counted:
    options = (_stream(sizes), sizes.num_chunk_streams, sizes.body_bytes, side.is_faithful)
    return _timed(bench, side, lambda: bench.in_client(_stream_all, side.target, *options))


def _stream(sizes: Sizes) -> Plan:
    return Plan(num_chunks=sizes.num_chunks, gap_ms=CHUNK_GAP_MS)


def _timed(bench: Bench, side: Side, work: Callable[[], Counted]) -> Counted:
    """Run the work, and add the processor time of the gateway's processes."""

    def timed() -> Counted:
        if side.server is None:
            return work()
        before_s = side.server.cpu_s()
        return replace(work(), cpu_s=max(side.server.cpu_s() - before_s, CLOCK_TICK_S))

    counted, others = bench.quiet.measured(timed)
    return replace(counted, others=others)


def _ask(target: Target, num_clients: int, seconds: float, num_bytes: int, is_faithful: bool) -> Counted:
    with without_gc():
        return uvloop.run(_closed_loop(target, num_clients, seconds, num_bytes, is_faithful))


async def _closed_loop(
    target: Target, num_clients: int, seconds: float, num_bytes: int, is_faithful: bool
) -> Counted:
    """Run ``num_clients`` clients; each sends its next request as soon as it has a response."""
    pool, numbers = Pool(target), count()
    requests = [request_for(target, PLAN, False, num_bytes, i, is_faithful) for i in range(NUM_BODIES)]
    exchanges: list[Exchange] = []
    begin_s = time.monotonic()

    async def client() -> None:
        while time.monotonic() < begin_s + seconds:
            exchanges.append(await pool.ask(requests[next(numbers) % NUM_BODIES]))

    async with asyncio.timeout(seconds + SLACK_S), asyncio.TaskGroup() as group:
        for _ in range(num_clients):
            group.create_task(client())
    pool.close()
    return _counted(exchanges, len(exchanges), time.monotonic() - begin_s)


def _stream_all(target: Target, plan: Plan, num_streams: int, num_bytes: int, is_faithful: bool) -> Counted:
    with without_gc():
        return uvloop.run(_stream_together(target, plan, num_streams, num_bytes, is_faithful))


async def _stream_together(
    target: Target, plan: Plan, num_streams: int, num_bytes: int, is_faithful: bool
) -> Counted:
    """Run ``num_streams`` concurrent streams, out of step with each other."""
    pool, begin_s = Pool(target), time.monotonic()

    async def stream(number: int) -> Exchange:
        await asyncio.sleep(number / num_streams)
        return await pool.ask(request_for(target, plan, True, num_bytes, number, is_faithful))

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(stream(i)) for i in range(num_streams)]
    pool.close()
    exchanges = [task.result() for task in tasks]
    return _counted(exchanges, num_streams * plan.num_chunks, time.monotonic() - begin_s)


def _counted(exchanges: Sequence[Exchange], num_done: int, wall_s: float) -> Counted:
    num_errors = sum(not one.is_good for one in exchanges)
    return Counted(num_done, sum(one.num_parts for one in exchanges), num_errors, wall_s)


def figures(requests: dict[str, list[Counted]], chunks: dict[str, list[Counted]]) -> dict[str, Any]:
    """Return medians over rounds, by side; ratios are within a round."""
    sides = {name: _side(requests[name], chunks[name]) for name in requests}
    result: dict[str, Any] = {
        "req_per_s_core": sides[OURS]["req_per_s_core"],
        "wall_req_per_s": sides[OURS]["wall_req_per_s"],
        "cpu_us_per_chunk": sides[OURS]["cpu_us_per_chunk"],
        "num_errors": sides[OURS]["num_errors"],
        "sides": sides,
    }
    if LITELLM in sides:
        result["litellm_req_per_s_core"] = sides[LITELLM]["req_per_s_core"]
        result["litellm_cpu_us_per_chunk"] = sides[LITELLM]["cpu_us_per_chunk"]
        pairs = zip(requests[OURS], requests[LITELLM], strict=True)
        result["req_per_s_core_vs_litellm"] = median(a.per_core / b.per_core for a, b in pairs)
    return result


def _side(requests: Sequence[Counted], chunks: Sequence[Counted]) -> dict[str, Any]:
    result: dict[str, Any] = {
        "wall_req_per_s": median(one.num_done / one.wall_s for one in requests),
        "num_errors": sum(one.num_errors for one in (*requests, *chunks)),
        "others_cores": [one.others for one in (*requests, *chunks)],
    }
    if requests[0].cpu_s is None:
        return result
    return {
        **result,
        "req_per_s_core": median(one.per_core for one in requests),
        "cpu_us_per_chunk": median(1e6 / one.per_core for one in chunks),
        "parts_per_chunk": median(one.num_parts / one.num_done for one in chunks),
        "rounds_req_per_s_core": [one.per_core for one in requests],
        "rounds_cpu_us_per_chunk": [1e6 / one.per_core for one in chunks],
    }
