"""What a gateway adds to an answer's time, at a fixed rate of requests and with streams open beside.

Requests are sent when they are due, whether or not earlier ones have been answered, and latency counts from
then: a side that falls behind can't hide it. Every second one is streamed, and its first byte counts; of the
others the last.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import uvloop

from agentspec.benchmarks.gateway import answers
from agentspec.benchmarks.gateway.agent_bodies import body
from agentspec.benchmarks.gateway.client import Exchange, Pool, Request, Target
from agentspec.benchmarks.gateway.metronome import Metronome
from agentspec.benchmarks.gateway.percentiles import Milliseconds, added, curve, described
from agentspec.benchmarks.gateway.plan import Plan
from agentspec.benchmarks.gateway.sides import DIRECT, LITELLM, OURS, Setup, Side
from agentspec.benchmarks.gateway.sizes import Sizes
from agentspec.benchmarks.process import in_fresh_process, without_gc
from agentspec.benchmarks.report import Announce
from agentspec.errors import AgentSpecError

ANSWER, FIRST_BYTE = "answer", "first_byte"
KINDS = (ANSWER, FIRST_BYTE)
PLAN = Plan(num_chunks=50)
SHORT_STREAM = Plan(num_chunks=5)
BESIDE_GAP_MS = 50
NUM_BODIES = 16
MOST_BEHIND_MS = 250.0  # the last quarter's median, of a side that keeps up
LEAST_RATE = 5
SLACK_S = 60.0


@dataclass(frozen=True, slots=True)
class Load:
    """What a side is asked for: requests per second, streams beside."""

    rate_per_s: float
    num_beside: int
    seconds: float
    warm_up_s: float
    body_bytes: int

    @property
    def beside(self) -> Plan:
        """A stream that goes on to the end."""
        return Plan(
            num_chunks=int((self.seconds + self.warm_up_s) * 1e3) // BESIDE_GAP_MS, gap_ms=BESIDE_GAP_MS
        )

    @property
    def halved(self) -> Load:
        """For a side that does not keep up."""
        return replace(self, rate_per_s=self.rate_per_s / 2, num_beside=self.num_beside // 2)


@dataclass(frozen=True, slots=True)
class Served:
    """What one round of one side gave.

    Attributes:
        ms: by kind, in the order they were due.
        num_errors: requests that were not answered as they should have been, streams beside included.
    """

    ms: dict[str, Milliseconds]
    num_errors: int

    @property
    def behind_ms(self) -> float:
        """How long the last requests took."""
        return float(max(np.median(one[-max(len(one) // 4, 1) :]) for one in self.ms.values()))


def measure(setup: Setup, sizes: Sizes, announce: Announce) -> dict[str, Any]:
    """The figures as they go into the JSON.

    Raises:
        AgentSpecError: a process did not start, or does not answer.
    """
    load = Load(sizes.rate_per_s, sizes.num_beside, sizes.latency_s, sizes.warm_up_s, sizes.body_bytes)
    models = [plan.model for plan in (PLAN, SHORT_STREAM, load.beside)]
    with setup.running(models, announce) as bench:
        loads = dict.fromkeys(bench.sides, load)
        if LITELLM in loads:
            loads[LITELLM] = sustained(bench.sides[LITELLM], load, announce)
        rounds: dict[str, list[Served]] = {name: [] for name in loads}
        for number in range(sizes.num_rounds):
            for name in turned(list(loads), number):
                announce(f"latency, round {number + 1}, {name}, {loads[name].rate_per_s:g} requests/s")
                rounds[name].append(serve(bench.sides[name], loads[name]))
    return figures(rounds, loads)


def turned(names: Sequence[str], number: int) -> list[str]:
    """Who goes first changes from round to round."""
    first = number % len(names)
    return [*names[first:], *names[:first]]


def sustained(side: Side, load: Load, announce: Announce) -> Load:
    """The load itself, or half of it again and again until the side keeps up.

    Raises:
        AgentSpecError: it does not answer even a few requests per second.
    """
    while load.rate_per_s >= LEAST_RATE:
        announce(f"latency: does {side.name} keep up with {load.rate_per_s:g} requests/s?")
        served = serve(side, load)
        if not served.num_errors and served.behind_ms < MOST_BEHIND_MS:
            return load
        load = load.halved
    raise AgentSpecError(f"{side.name!r} does not answer {LEAST_RATE} requests/s: see its log")


def serve(side: Side, load: Load) -> Served:
    """One round."""
    return in_fresh_process(_serve, side.target, load, side.is_faithful)


def _serve(target: Target, load: Load, is_faithful: bool) -> Served:
    with without_gc():
        return uvloop.run(_drive(target, load, is_faithful))


async def _drive(target: Target, load: Load, is_faithful: bool) -> Served:
    pool, kinds = Pool(target), requests(target, load, is_faithful)
    exchanges: dict[str, list[Exchange]] = {kind: [] for kind in KINDS}
    async with asyncio.timeout(load.seconds + load.warm_up_s + SLACK_S), asyncio.TaskGroup() as group:
        streams = [group.create_task(_beside(target, load, i, is_faithful)) for i in range(load.num_beside)]

        async def ask(number: int, due_ns: int) -> None:
            kind = KINDS[number % 2]
            request = kinds[kind][number // 2 % NUM_BODIES]
            exchanges[kind].append(await pool.ask(request, due_ns))

        num_requests = round(load.rate_per_s * (load.seconds + load.warm_up_s))
        beats = Metronome(
            round(1e9 / load.rate_per_s), num_requests, lambda i, due_ns: group.create_task(ask(i, due_ns))
        )
        await beats.run()
    pool.close()
    all_of_them = [*(one for kind in KINDS for one in exchanges[kind]), *(one.result() for one in streams)]
    return Served(
        {kind: _latencies(kind, exchanges[kind], load) for kind in KINDS},
        sum(not one.is_good for one in all_of_them),
    )


async def _beside(target: Target, load: Load, number: int, is_faithful: bool) -> Exchange:
    """One stream, begun so that no two are in step."""
    await asyncio.sleep(number / load.num_beside * min(1.0, load.warm_up_s))
    request = request_for(target, load.beside, True, load.body_bytes, number, is_faithful)
    pool = Pool(target)
    try:
        return await pool.ask(request)
    finally:
        pool.close()


def requests(target: Target, load: Load, is_faithful: bool) -> dict[str, list[Request]]:
    """By kind, some that differ."""
    return {
        kind: [
            request_for(target, plan, is_stream, load.body_bytes, i, is_faithful) for i in range(NUM_BODIES)
        ]
        for kind, plan, is_stream in ((ANSWER, PLAN, False), (FIRST_BYTE, SHORT_STREAM, True))
    }


def request_for(
    target: Target, plan: Plan, is_stream: bool, num_bytes: int, number: int, is_faithful: bool
) -> Request:
    """A chat request, and its answer where no byte of it may change."""
    asked = body(answers.CHAT, plan, is_stream=is_stream, num_bytes=num_bytes, number=number)
    expected = answers.body(answers.CHAT, plan, is_stream) if is_faithful else None
    return Request(target.head(answers.CHAT, len(asked)) + asked, expected)


def _latencies(kind: str, exchanges: Sequence[Exchange], load: Load) -> Milliseconds:
    in_order = sorted(exchanges, key=lambda one: one.due_ns)
    judged = in_order[round(load.warm_up_s * load.rate_per_s / len(KINDS)) :]
    ends = [(one.last_ns if kind == ANSWER else one.first_ns) - one.due_ns for one in judged if one.is_good]
    return np.array(ends, float) / 1e6


def figures(rounds: dict[str, list[Served]], loads: dict[str, Load]) -> dict[str, Any]:
    """What is added, and what it was made of."""
    result: dict[str, Any] = {"sides": {name: _side(rounds[name], loads[name]) for name in rounds}}
    for name, prefix in ((OURS, ""), (LITELLM, "litellm_")):
        if name in rounds:
            for percentile in (50, 99):
                by_kind = {kind: _added(rounds, name, kind, percentile) for kind in KINDS}
                result |= {f"{prefix}{kind}_added_ms_p{percentile}": by_kind[kind] for kind in KINDS}
                result[f"{prefix}added_ms_p{percentile}"] = max(by_kind.values())
    if LITELLM in rounds:
        result |= {
            f"added_vs_litellm_p{percentile}": max(
                result[f"{kind}_added_ms_p{percentile}"] / result[f"litellm_{kind}_added_ms_p{percentile}"]
                for kind in KINDS
            )
            for percentile in (50, 99)
        }
    result["num_errors"] = sum(one.num_errors for served in rounds.values() for one in served)
    result["curves"] = {
        name: {kind: curve(_of(rounds[name], kind), _of(rounds[DIRECT], kind)) for kind in KINDS}
        for name in rounds
        if name != DIRECT
    }
    return result


def _side(served: Sequence[Served], load: Load) -> dict[str, Any]:
    return {
        "rate_per_s": load.rate_per_s,
        "num_beside": load.num_beside,
        "num_errors": sum(one.num_errors for one in served),
        **{kind: described(_of(served, kind)) for kind in KINDS},
    }


def _of(served: Sequence[Served], kind: str) -> list[Milliseconds]:
    return [one.ms[kind] for one in served]


def _added(rounds: dict[str, list[Served]], name: str, kind: str, percentile: float) -> float:
    return added(_of(rounds[name], kind), _of(rounds[DIRECT], kind), percentile)
