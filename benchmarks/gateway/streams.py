"""Many concurrent streams: how many are open together, whether bytes change, how long clients stall.

The same load also runs without a gateway: those stalls are due to the machine, the stub and the clients.
"""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Sequence
from typing import Any

import numpy as np
import uvloop

from agentspec.reporting.report import Announce
from benchmarks.gateway.client import Exchange, Pool, Target
from benchmarks.gateway.latency import request_for
from benchmarks.gateway.metronome import Metronome
from benchmarks.gateway.plan import Plan
from benchmarks.gateway.sides import DIRECT, OURS, Bench, Setup, Side
from benchmarks.gateway.sizes import Sizes
from benchmarks.harness.process import without_gc

OPENED_WITHIN = 0.25  # opening takes this share of the time that each stream lasts
SLACK_S = 120.0


def measure(setup: Setup, sizes: Sizes, announce: Announce) -> dict[str, Any]:
    """Return the figures for the JSON.

    Raises:
        AgentSpecError: a process did not start.
    """
    allow_open_files()
    plan = Plan(num_chunks=int(sizes.held_s * 1e3) // sizes.held_gap_ms, gap_ms=sizes.held_gap_ms)
    with setup.running([], announce, peer=False) as bench:
        by_side = {}
        for side in bench.sides.values():
            announce(f"streams: {sizes.num_held} at a time, {side.name}")
            by_side[side.name] = _hold(bench, side, plan, sizes)
    return {
        "streams_held": by_side[OURS]["num_held"],
        "longest_stall_ms": by_side[OURS]["longest_stall_ms"],
        "direct_longest_stall_ms": by_side[DIRECT]["longest_stall_ms"],
        "num_errors": by_side[OURS]["num_errors"],
        "num_changed": by_side[OURS]["num_changed"],
        "gap_ms": plan.gap_ms,
        "num_chunks": plan.num_chunks,
        "sides": by_side,
    }


def allow_open_files() -> None:
    """Raise the open-files limit to the user's maximum, for this process and those started later."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _hold(bench: Bench, side: Side, plan: Plan, sizes: Sizes) -> dict[str, Any]:
    def held() -> tuple[list[Exchange], float | None]:
        before_s = side.server.cpu_s() if side.server else 0.0
        exchanges = bench.in_client(_stream_all, side.target, plan, sizes)
        return exchanges, side.server.cpu_s() - before_s if side.server else None

    (exchanges, cpu_s), others = bench.quiet.measured(held)
    return {**figures(exchanges, plan.gap_ms), "gateway_cpu_s": cpu_s, "others_cores": others}


def _stream_all(target: Target, plan: Plan, sizes: Sizes) -> list[Exchange]:
    with without_gc():
        return uvloop.run(_open_and_wait(target, plan, sizes))


async def _open_and_wait(target: Target, plan: Plan, sizes: Sizes) -> list[Exchange]:
    """Open streams one by one; if the gateway is fast enough, none ends before all are open."""
    pool = Pool(target)
    interval_ns = int(sizes.held_s * OPENED_WITHIN * 1e9) // sizes.num_held
    tasks: list[asyncio.Task[Exchange]] = []
    async with asyncio.timeout(sizes.held_s + SLACK_S), asyncio.TaskGroup() as group:

        def begin(number: int, due_ns: int) -> None:
            request = request_for(target, plan, True, sizes.body_bytes, number, is_faithful=True)
            tasks.append(group.create_task(pool.ask(request, due_ns)))

        await Metronome(interval_ns, sizes.num_held, begin).run()
    pool.close()
    return [task.result() for task in tasks]


def figures(exchanges: Sequence[Exchange], gap_ms: float) -> dict[str, Any]:
    """Return one side's figures; a stall is the time beyond the gap that a client waited for a chunk."""
    good = [one for one in exchanges if one.is_good]
    stalls_ms = [one.longest_silence_ns / 1e6 - gap_ms for one in exchanges if one.num_parts] or [0.0]
    first_ms = [(one.first_ns - one.due_ns) / 1e6 for one in exchanges if one.num_parts] or [0.0]
    return {
        "num_held": most_at_once([(one.first_ns, one.last_ns) for one in good]),
        "num_errors": len(exchanges) - len(good),
        "num_changed": sum(one.is_changed for one in exchanges),
        "longest_stall_ms": max(stalls_ms),
        "longest_stall_of_a_stream_ms_p50": float(np.percentile(stalls_ms, 50)),
        "longest_stall_of_a_stream_ms_p99": float(np.percentile(stalls_ms, 99)),
        "first_byte_ms_p50": float(np.percentile(first_ms, 50)),
        "first_byte_ms_p99": float(np.percentile(first_ms, 99)),
    }


def most_at_once(spans: Sequence[tuple[int, int]]) -> int:
    """Return the largest number of spans of time that overlap at one moment."""
    open_now = most = 0
    for _, change in sorted([(begin, 1) for begin, _ in spans] + [(end, -1) for _, end in spans]):
        open_now += change
        most = max(most, open_now)
    return most
