"""Clients that leave, on every endpoint: the time until the engine can stop generating.

The time runs from the client's hang-up until the stub loses its connection. Endpoints that a gateway does
not have are skipped, and the figures report that.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from uuid import uuid4

import httpx
import numpy as np
import uvloop

from agentspec.reporting.report import Announce
from benchmarks.gateway import answers
from benchmarks.gateway.agent_bodies import body
from benchmarks.gateway.client import Pool, Request, Target
from benchmarks.gateway.plan import HANG_MS, Plan
from benchmarks.gateway.sides import OURS, Bench, Setup
from benchmarks.gateway.sizes import Sizes
from benchmarks.gateway.stub import MARKS_PATH

ENDPOINTS = (answers.CHAT, answers.COMPLETIONS, answers.RESPONSES, answers.MESSAGES, answers.EMBEDDINGS)
STAGGER_S = 0.01
SEEN_LIMIT_S = 5.0
CLIENTS_LIMIT_S = 60.0
HANGS = Plan(delay_ms=HANG_MS)
GOES_ON = Plan(num_chunks=2_000, gap_ms=20)


@dataclass(frozen=True, slots=True)
class Leaving:
    """The plan of a request, and the time at which its client hangs up."""

    plan: Plan
    is_stream: bool
    after_s: float | None = None
    after_parts: int | None = None


BEFORE_THE_ANSWER = "before the answer"
KINDS = {
    BEFORE_THE_ANSWER: Leaving(HANGS, is_stream=False, after_s=0.2),
    "before the first byte": Leaving(HANGS, is_stream=True, after_s=0.2),
    "in the middle": Leaving(GOES_ON, is_stream=True, after_parts=10),
}


Left = dict[str, dict[str, dict[str, int]]]  # endpoint -> kind -> mark -> when that client left, 0 = never


def measure(setup: Setup, sizes: Sizes, announce: Announce) -> dict[str, Any]:
    """Return the figures for the JSON.

    Raises:
        AgentSpecError: a process did not start.
    """
    with setup.running([], announce, peer=False) as bench:
        sides, others = {}, {}
        for side in bench.sides.values():
            announce(f"abort, {side.name}")
            sides[side.name], others[side.name] = bench.quiet.measured(
                partial(_leave_all, bench, side.target, sizes)
            )
    return {
        "abort_ms_max": worst(sides[OURS]),
        "num_errors": _errors(sides[OURS]),
        "others_cores": others,
        "sides": sides,
    }


def worst(by_endpoint: Mapping[str, Any]) -> float | None:
    """Return the longest time over all kinds; None if nothing was measured."""
    return max((kind["ms_max"] for one in _measured(by_endpoint) for kind in one.values()), default=None)


def _errors(by_endpoint: Mapping[str, Any]) -> int:
    return sum(kind["num_errors"] for one in _measured(by_endpoint) for kind in one.values())


def _measured(by_endpoint: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [one for one in by_endpoint.values() if not isinstance(one, str)]


def _leave_all(bench: Bench, target: Target, sizes: Sizes) -> dict[str, Any]:
    """Return figures by endpoint and kind; a text for an endpoint that does not exist."""
    left = bench.in_client(_clients, target, sizes)
    gone = _seen(
        bench.stub.url, {mark for cases in left.values() for marks in cases.values() for mark in marks}
    )
    return {
        endpoint: {kind: figures(marks, gone) for kind, marks in left[endpoint].items()}
        if endpoint in left
        else "skipped: it answers 404"
        for endpoint in ENDPOINTS
    }


def figures(left_ns: Mapping[str, int], gone_ns: Mapping[str, int]) -> dict[str, Any]:
    """Return one kind's figures; a mark never seen counts as an error, and as the time limit."""
    seen_ms = [(gone_ns[mark] - at_ns) / 1e6 for mark, at_ns in left_ns.items() if at_ns and mark in gone_ns]
    num_errors = len(left_ns) - len(seen_ms)
    all_ms = [*seen_ms, *[SEEN_LIMIT_S * 1e3] * num_errors]
    return {"ms_p50": float(np.percentile(all_ms, 50)), "ms_max": max(all_ms), "num_errors": num_errors}


def _seen(stub_url: str, marks: Set[str]) -> dict[str, int]:
    """Return when the stub lost each connection; wait for these marks up to the limit."""
    deadline = time.monotonic() + SEEN_LIMIT_S
    while True:
        gone: dict[str, int] = httpx.get(stub_url + MARKS_PATH).json()["gone"]
        if marks <= gone.keys() or time.monotonic() > deadline:
            return gone
        time.sleep(0.1)


def _clients(target: Target, sizes: Sizes) -> Left:
    return uvloop.run(_endpoint_by_endpoint(target, sizes))


async def _endpoint_by_endpoint(target: Target, sizes: Sizes) -> Left:
    left: Left = {}
    pool = Pool(target)
    for endpoint in ENDPOINTS:
        if (await pool.ask(_request(target, endpoint, Plan(), 0))).status != 404:
            kinds = [BEFORE_THE_ANSWER] if endpoint == answers.EMBEDDINGS else list(KINDS)
            left[endpoint] = {kind: await _leave(target, endpoint, kind, sizes) for kind in kinds}
    pool.close()
    return left


async def _leave(target: Target, endpoint: str, kind: str, sizes: Sizes) -> dict[str, int]:
    """Let clients leave; return when each left, by mark."""
    pool, leaving = Pool(target), KINDS[kind]

    async def ask(number: int) -> tuple[str, int]:
        await asyncio.sleep(number * STAGGER_S)
        mark = uuid4().hex
        plan = leaving.plan.marked(mark)
        asked = _request(target, endpoint, plan, sizes.body_bytes, is_stream=leaving.is_stream)
        request = replace(asked, leaves_after_s=leaving.after_s, leaves_after_parts=leaving.after_parts)
        return mark, (await pool.ask(request)).left_ns

    async with asyncio.timeout(CLIENTS_LIMIT_S):
        return dict(await asyncio.gather(*(ask(i) for i in range(sizes.num_leaving))))


def _request(
    target: Target, endpoint: str, plan: Plan, num_bytes: int, *, is_stream: bool = False
) -> Request:
    asked = body(endpoint, plan, is_stream=is_stream, num_bytes=num_bytes)
    return Request(target.head(endpoint, len(asked)) + asked)
