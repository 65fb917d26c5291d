"""The latency that a gateway adds, at a fixed request rate and next to open streams.

Requests are sent when they are due, even if earlier ones are still open. Latency counts from then, so a side
that falls behind cannot hide it. Every second request is streamed and counts to its first byte; the others
count to their last byte.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import uvloop

from agentspec.errors import AgentSpecError
from agentspec.reporting.report import Announce
from benchmarks.gateway import answers
from benchmarks.gateway.agent_bodies import body
from benchmarks.gateway.client import Exchange, Pool, Request, Target
from benchmarks.gateway.metronome import Metronome
from benchmarks.gateway.percentiles import Milliseconds, added, curve, described
from benchmarks.gateway.plan import Plan
from benchmarks.gateway.sides import DIRECT, LITELLM, OURS, Bench, Setup
from benchmarks.gateway.sizes import Sizes
from benchmarks.harness.process import without_gc

ANSWER, FIRST_BYTE = "answer", "first_byte"
KINDS = (ANSWER, FIRST_BYTE)
BESIDE = "beside"
PLAN = Plan(num_chunks=50)
SHORT_STREAM = Plan(num_chunks=5)
BESIDE_GAP_MS = 50
NUM_BODIES = 16
MOST_BEHIND = 2.0  # a side keeps up if its last responses take at most this multiple of the lightest load's
SHARES = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1)
TRIAL_S = 4.0
SLACK_S = 20.0


@dataclass(frozen=True, slots=True)
class Load:
    """The load on one side: requests per second, and streams next to them."""

    rate_per_s: float
    num_beside: int
    seconds: float
    warm_up_s: float
    body_bytes: int

    @property
    def beside(self) -> Plan:
        """A stream that lasts the whole round."""
        return Plan(
            num_chunks=int((self.seconds + self.warm_up_s) * 1e3) // BESIDE_GAP_MS, gap_ms=BESIDE_GAP_MS
        )

    @property
    def trial(self) -> Load:
        """The same load for a short time."""
        return replace(self, seconds=min(self.seconds, TRIAL_S))

    def part(self, share: float) -> Load:
        """Return this share of the load, for a side that does not keep up."""
        return replace(self, rate_per_s=self.rate_per_s * share, num_beside=round(self.num_beside * share))


@dataclass(frozen=True, slots=True)
class Served:
    """Results of one round on one side.

    Attributes:
        ms: latencies by kind, in the order in which requests were due.
        num_errors: requests and background streams without the expected response.
        others: average number of cores that other processes kept busy.
    """

    ms: dict[str, Milliseconds]
    num_errors: int
    others: float = 0.0

    @property
    def behind_ms(self) -> float:
        """Median latency of the last quarter of requests, of the slower kind."""
        return float(max(np.median(one[-max(len(one) // 4, 1) :]) for one in self.ms.values()))


def measure(setup: Setup, sizes: Sizes, announce: Announce) -> dict[str, Any]:
    """Return the figures for the JSON.

    Raises:
        AgentSpecError: a process did not start, or does not respond.
    """
    load = Load(sizes.rate_per_s, sizes.num_beside, sizes.latency_s, sizes.warm_up_s, sizes.body_bytes)
    lighter = sustained_by_litellm(setup, load, announce) if setup.litellm else load
    with setup.running(models(load), announce) as bench:
        loads = {name: lighter if name == LITELLM else load for name in bench.sides}
        rounds: dict[str, list[Served]] = {name: [] for name in loads}
        for number in range(sizes.num_rounds):
            for name in turned(list(loads), number):
                announce(f"latency, round {number + 1}, {name}, {loads[name].rate_per_s:g} requests/s")
                rounds[name].append(serve(bench, name, loads[name]))
    return figures(rounds, loads)


def turned(names: Sequence[str], number: int) -> list[str]:
    """Rotate the names, so that each round starts with another side."""
    first = number % len(names)
    return [*names[first:], *names[:first]]


def models(load: Load) -> list[str]:
    """Return the names of all models requested."""
    return [plan.model for plan in (PLAN, SHORT_STREAM, load.beside)]


def sustained_by_litellm(setup: Setup, load: Load, announce: Announce) -> Load:
    """Return the load itself, or the largest of its SHARES that LiteLLM keeps up with.

    Shares are tried from the lightest on, with separate processes: an overloaded proxy stays busy for long.
    """
    sustained, usual_ms = load.part(SHARES[0]), math.inf
    with setup.running(models(load.trial), announce) as bench:
        for share in SHARES:
            part = load.part(share)
            announce(f"latency: does {LITELLM} keep up with {part.rate_per_s:g} requests/s?")
            served = serve(bench, LITELLM, part.trial)
            if served.num_errors or served.behind_ms > MOST_BEHIND * usual_ms:
                break
            sustained, usual_ms = part, min(usual_ms, served.behind_ms)
    return sustained


def serve(bench: Bench, name: str, load: Load) -> Served:
    """Measure one round of one side.

    Raises:
        AgentSpecError: no request was answered in time.
    """
    side = bench.sides[name]
    served, others = bench.quiet.measured(
        lambda: bench.in_client(_serve, side.target, load, side.is_faithful)
    )
    if not all(len(one) for one in served.ms.values()):
        raise AgentSpecError(f"{name!r} answered nothing at {load.rate_per_s:g} requests/s: see its log")
    return replace(served, others=others)


def _serve(target: Target, load: Load, is_faithful: bool) -> Served:
    loop = OpenLoop(target, load, is_faithful)
    with without_gc():
        uvloop.run(loop.run())
    return loop.served()


class OpenLoop:
    """Requests sent when they are due, background streams, and their results."""

    def __init__(self, target: Target, load: Load, is_faithful: bool) -> None:
        self._target = target
        self._load = load
        self._is_faithful = is_faithful
        self._num_requests = round(load.rate_per_s * (load.seconds + load.warm_up_s))
        self._requests = requests(target, load, is_faithful)
        self._exchanges: dict[str, list[Exchange]] = {kind: [] for kind in (*KINDS, BESIDE)}

    async def run(self) -> None:
        """Run to the last response, or to the time-out."""
        pool, limit_s = Pool(self._target), self._load.seconds + self._load.warm_up_s + SLACK_S
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s), asyncio.TaskGroup() as group:
                for number in range(self._load.num_beside):
                    group.create_task(self._stream_beside(pool, number))
                await Metronome(
                    round(1e9 / self._load.rate_per_s),
                    self._num_requests,
                    lambda number, due_ns: group.create_task(self._ask(pool, number, due_ns)),
                ).run()
        pool.close()

    def served(self) -> Served:
        """Return the results; requests not answered in time count as errors."""
        num_good = sum(one.is_good for exchanges in self._exchanges.values() for one in exchanges)
        return Served(
            {kind: self._latencies(kind) for kind in KINDS},
            self._num_requests + self._load.num_beside - num_good,
        )

    async def _ask(self, pool: Pool, number: int, due_ns: int) -> None:
        kind = KINDS[number % len(KINDS)]
        request = self._requests[kind][number // len(KINDS) % NUM_BODIES]
        self._exchanges[kind].append(await pool.ask(request, due_ns))

    async def _stream_beside(self, pool: Pool, number: int) -> None:
        """Run one background stream, started out of step with the others."""
        load = self._load
        await asyncio.sleep(number / load.num_beside * min(1.0, load.warm_up_s))
        request = request_for(self._target, load.beside, True, load.body_bytes, number, self._is_faithful)
        self._exchanges[BESIDE].append(await pool.ask(request))

    def _latencies(self, kind: str) -> Milliseconds:
        first_ns = min((one.due_ns for one in self._exchanges[kind]), default=0)
        judged_ns = first_ns + self._load.warm_up_s * 1e9
        good = [one for one in self._exchanges[kind] if one.is_good and one.due_ns >= judged_ns]
        good.sort(key=lambda one: one.due_ns)
        ends = [(one.last_ns if kind == ANSWER else one.first_ns) - one.due_ns for one in good]
        return np.array(ends, float) / 1e6


def requests(target: Target, load: Load, is_faithful: bool) -> dict[str, list[Request]]:
    """Return NUM_BODIES different requests per kind."""
    return {
        kind: [
            request_for(target, plan, is_stream, load.body_bytes, i, is_faithful) for i in range(NUM_BODIES)
        ]
        for kind, plan, is_stream in ((ANSWER, PLAN, False), (FIRST_BYTE, SHORT_STREAM, True))
    }


def request_for(
    target: Target, plan: Plan, is_stream: bool, num_bytes: int, number: int, is_faithful: bool
) -> Request:
    """Return a chat request, with the expected response if no byte may change."""
    asked = body(answers.CHAT, plan, is_stream=is_stream, num_bytes=num_bytes, number=number)
    expected = answers.body(answers.CHAT, plan, is_stream) if is_faithful else None
    return Request(target.head(answers.CHAT, len(asked)) + asked, expected)


def figures(rounds: dict[str, list[Served]], loads: dict[str, Load]) -> dict[str, Any]:
    """Return the added latencies, and the figures that they derive from."""
    result: dict[str, Any] = {"sides": {name: _side(rounds[name], loads[name]) for name in rounds}}
    for name, prefix in ((OURS, ""), (LITELLM, "litellm_")):
        if name in rounds:
            for percentile in (50, 99):
                by_kind = {kind: _added(rounds, name, kind, percentile) for kind in KINDS}
                result |= {f"{prefix}{kind}_added_ms_p{percentile}": by_kind[kind] for kind in KINDS}
                result[f"{prefix}added_ms_p{percentile}"] = max(by_kind.values())
    if LITELLM in rounds:
        result["litellm_rate_per_s"] = loads[LITELLM].rate_per_s
        result |= {
            f"added_vs_litellm_p{percentile}": max(
                result[f"{kind}_added_ms_p{percentile}"] / result[f"litellm_{kind}_added_ms_p{percentile}"]
                for kind in KINDS
            )
            for percentile in (50, 99)
        }
    result["num_errors"] = result["sides"][OURS]["num_errors"]
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
        "others_cores": [one.others for one in served],
        **{kind: described(_of(served, kind)) for kind in KINDS},
    }


def _of(served: Sequence[Served], kind: str) -> list[Milliseconds]:
    return [one.ms[kind] for one in served]


def _added(rounds: dict[str, list[Served]], name: str, kind: str, percentile: float) -> float:
    return added(_of(rounds[name], kind), _of(rounds[DIRECT], kind), percentile)
