"""A long soak with all kinds of traffic: growth of memory and open files, and every response checked."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from threading import Event, Thread
from typing import Any

import uvloop

from agentspec.reporting.report import Announce
from benchmarks.gateway import answers
from benchmarks.gateway.agent_bodies import body
from benchmarks.gateway.client import Exchange, Pool, Request, Target
from benchmarks.gateway.metronome import Metronome
from benchmarks.gateway.plan import HANG_MS, Plan
from benchmarks.gateway.sides import OURS, Setup
from benchmarks.gateway.sizes import Sizes
from benchmarks.vllm.server import Server

SEED = 17
NUM_SAMPLES = 360
WINDOW = 0.1  # of the judged time, at its start and its end
ANSWER_LIMIT_S = 60.0
SLACK_S = ANSWER_LIMIT_S + 10
LONG_BODIES = tuple(kib << 10 for kib in (8, 16, 32, 64))


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of request.

    Attributes:
        share: share of all requests.
        plans: plans to choose from at random.
        has_long_body: true for 8 to 64 KiB in place of the usual size.
    """

    share: float
    plans: tuple[Plan, ...]
    is_stream: bool = True
    leaves_after_s: float | None = None
    leaves_after_parts: int | None = None
    has_long_body: bool = False

    def is_expected(self, exchange: Exchange, plan: Plan) -> bool:
        """True if a faithful gateway returns this for the plan."""
        if self.leaves_after_s or self.leaves_after_parts:
            return bool(exchange.left_ns) and not exchange.is_changed
        if plan.breaks_after:  # reported by an error event, or by breaking off too
            told = exchange.rest.startswith(answers.ERROR_EVENT)
            return exchange.status == 200 and (told or not (exchange.is_complete or exchange.is_changed))
        return exchange.status == plan.status and exchange.is_complete and not exchange.is_changed


STREAM = Plan(delay_ms=20, num_chunks=50, gap_ms=20)
ANSWER = Plan(delay_ms=50, num_chunks=50)
KINDS = {
    "stream": Kind(0.40, (STREAM,)),
    "answer": Kind(0.25, (ANSWER,), is_stream=False),
    "long body, stream": Kind(0.05, (STREAM,), has_long_body=True),
    "long body, answer": Kind(0.05, (ANSWER,), is_stream=False, has_long_body=True),
    "leaves before the first byte": Kind(0.05, (Plan(delay_ms=HANG_MS),), leaves_after_s=0.2),
    "leaves in the middle": Kind(0.08, (STREAM,), leaves_after_parts=10),
    "error": Kind(0.08, tuple(Plan(status=status) for status in (400, 429, 500, 503))),
    "breaks off": Kind(0.04, (Plan(num_chunks=50, gap_ms=20, breaks_after=10),)),
}


@dataclass(slots=True)
class Traffic:
    """The clients' results: requests by kind, and descriptions of unexpected responses."""

    num_requests: Counter[str] = field(default_factory=Counter)
    unexpected: Counter[str] = field(default_factory=Counter)
    num_changed: int = 0


@dataclass(frozen=True, slots=True)
class Sample:
    """Memory and open files of the gateway's processes at one moment."""

    at_s: float
    rss_bytes: int
    num_open_files: int


def measure(setup: Setup, sizes: Sizes, announce: Announce) -> dict[str, Any]:
    """Return the figures for the JSON.

    Raises:
        AgentSpecError: a process did not start.
    """
    seconds = sizes.soak_minutes * 60
    with setup.running([], announce, peer=False) as bench:
        side = bench.sides[OURS]
        assert side.server
        announce(f"soak: {sizes.soak_minutes:g} minutes")
        with sampled(side.server, seconds / NUM_SAMPLES) as samples:
            traffic = bench.in_client(_send, side.target, sizes)
    warm_up_s = min(sizes.soak_warm_up_minutes * 60, seconds / 2)
    return {**figures(traffic, samples, warm_up_s), "minutes": sizes.soak_minutes}


def figures(traffic: Traffic, samples: Sequence[Sample], warm_up_s: float) -> dict[str, Any]:
    """Return memory and open files after the warm-up, and the errors of the whole run."""
    judged = [one for one in samples if one.at_s >= warm_up_s]
    num_ends = max(round(len(judged) * WINDOW), 1)
    rss, files = (
        [median(getattr(one, name) for one in part) for part in (judged[:num_ends], judged[-num_ends:])]
        for name in ("rss_bytes", "num_open_files")
    )
    return {
        "soak_rss_growth": rss[1] / rss[0] - 1,
        "rss_bytes": rss,
        "open_files": files,
        "open_files_growth": files[1] - files[0],
        "most_open_files": max(one.num_open_files for one in samples),
        "num_requests": traffic.num_requests.total(),
        "num_errors": traffic.unexpected.total(),
        "num_changed": traffic.num_changed,
        "unexpected": dict(traffic.unexpected),
        "requests": dict(traffic.num_requests),
        "series": [[one.at_s, one.rss_bytes, one.num_open_files] for one in samples],
    }


@contextmanager
def sampled(server: Server, interval_s: float) -> Iterator[list[Sample]]:
    """Sample the server's memory and open files until the block ends."""
    samples: list[Sample] = []
    begin_s, over = time.monotonic(), Event()

    def sample() -> None:
        while not over.wait(interval_s):
            at_s = time.monotonic() - begin_s
            samples.append(Sample(at_s, server.resident_bytes(), server.num_open_files()))

    thread = Thread(target=sample)
    thread.start()
    try:
        yield samples
    finally:
        over.set()
        thread.join()


def _send(target: Target, sizes: Sizes) -> Traffic:
    return uvloop.run(_send_when_due(target, sizes))


async def _send_when_due(target: Target, sizes: Sizes) -> Traffic:
    seconds = sizes.soak_minutes * 60
    pool, traffic, rng = Pool(target), Traffic(), random.Random(SEED)
    names, shares = list(KINDS), [kind.share for kind in KINDS.values()]
    async with asyncio.timeout(seconds + SLACK_S), asyncio.TaskGroup() as group:

        def begin(number: int, due_ns: int) -> None:
            name = rng.choices(names, shares)[0]
            plan = rng.choice(KINDS[name].plans)
            num_bytes = rng.choice(LONG_BODIES) if KINDS[name].has_long_body else sizes.body_bytes
            group.create_task(_ask(pool, target, name, plan, num_bytes, number, traffic))

        num_requests = round(seconds * sizes.soak_rate_per_s)
        await Metronome(round(1e9 / sizes.soak_rate_per_s), num_requests, begin).run()
    pool.close()
    return traffic


async def _ask(
    pool: Pool, target: Target, name: str, plan: Plan, num_bytes: int, number: int, traffic: Traffic
) -> None:
    kind = KINDS[name]
    asked = body(answers.CHAT, plan, is_stream=kind.is_stream, num_bytes=num_bytes, number=number)
    request = Request(
        target.head(answers.CHAT, len(asked)) + asked,
        answers.body(answers.CHAT, plan, kind.is_stream),
        kind.leaves_after_s,
        kind.leaves_after_parts,
    )
    traffic.num_requests[name] += 1
    try:
        async with asyncio.timeout(ANSWER_LIMIT_S):
            exchange = await pool.ask(request)
    except (OSError, TimeoutError) as error:  # counted; the others continue
        traffic.unexpected[f"{name}: {error!r}"] += 1
        return
    traffic.num_changed += exchange.is_changed and not plan.breaks_after
    if not kind.is_expected(exchange, plan):
        said = "complete" if exchange.is_complete else "broken off"
        traffic.unexpected[f"{name}: status {exchange.status}, {said}, after {exchange.num_parts} parts"] += 1
