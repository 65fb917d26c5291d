"""Clients that leave, on every endpoint that generates: how long until the engine can stop working for them?

From the client's hanging up to the moment the stub sees its own connection gone. Endpoints that a gateway
does not have yet are skipped, and the figures say so.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import numpy as np
import uvloop

from agentspec.benchmarks.gateway import answers
from agentspec.benchmarks.gateway.agent_bodies import body
from agentspec.benchmarks.gateway.client import Exchange, Pool, Request, Target
from agentspec.benchmarks.gateway.plan import HANG_MS, Plan
from agentspec.benchmarks.gateway.sides import OURS, Setup
from agentspec.benchmarks.gateway.sizes import Sizes
from agentspec.benchmarks.gateway.stub import MARKS_PATH
from agentspec.benchmarks.process import in_fresh_process
from agentspec.benchmarks.report import Announce

ENDPOINTS = (answers.CHAT, answers.COMPLETIONS, answers.RESPONSES, answers.MESSAGES, answers.EMBEDDINGS)
STAGGER_S = 0.01
SEEN_LIMIT_S = 5.0
CLIENTS_LIMIT_S = 60.0
HANGS = Plan(delay_ms=HANG_MS)
GOES_ON = Plan(num_chunks=2_000, gap_ms=20)


@dataclass(frozen=True, slots=True)
class Leaving:
    """When a client hangs up."""

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


@dataclass(frozen=True, slots=True)
class Job:
    """Clients of one kind, as a client process is told."""

    target: Target
    endpoint: str
    kind: str
    num_clients: int
    body_bytes: int

    def mark(self, number: int) -> str:
        """What the stub remembers a client's request by."""
        names = (ENDPOINTS.index(self.endpoint), list(KINDS).index(self.kind), number)
        return f"{self.target.address[1]}x" + "x".join(map(str, names))

    def request(self, number: int) -> Request:
        """What this client sends, and when it leaves."""
        leaving = KINDS[self.kind]
        plan = leaving.plan.marked(self.mark(number))
        asked = body(self.endpoint, plan, is_stream=leaving.is_stream, num_bytes=self.body_bytes)
        return Request(
            self.target.head(self.endpoint, len(asked)) + asked,
            leaves_after_s=leaving.after_s,
            leaves_after_parts=leaving.after_parts,
        )


def measure(setup: Setup, sizes: Sizes, announce: Announce) -> dict[str, Any]:
    """The figures as they go into the JSON.

    Raises:
        AgentSpecError: a process did not start.
    """
    with setup.running([], announce, peer=False) as bench:
        sides = {}
        for side in bench.sides.values():
            announce(f"abort, {side.name}")
            sides[side.name] = _all_endpoints(side.target, bench.stub.url, sizes)
    return {"abort_ms_max": worst(sides[OURS]), "num_errors": _errors(sides[OURS]), "sides": sides}


def worst(by_endpoint: Mapping[str, Any]) -> float | None:
    """The longest over all kinds; None where nothing was measured."""
    return max((kind["ms_max"] for one in _measured(by_endpoint) for kind in one.values()), default=None)


def _errors(by_endpoint: Mapping[str, Any]) -> int:
    return sum(kind["num_errors"] for one in _measured(by_endpoint) for kind in one.values())


def _measured(by_endpoint: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [one for one in by_endpoint.values() if not isinstance(one, str)]


def _all_endpoints(target: Target, stub_url: str, sizes: Sizes) -> dict[str, Any]:
    """By endpoint and kind; a line where there is no such endpoint."""
    return {
        endpoint: _kinds(target, endpoint, stub_url, sizes)
        if in_fresh_process(_status, target, endpoint) != 404
        else "skipped: it answers 404"
        for endpoint in ENDPOINTS
    }


def _kinds(target: Target, endpoint: str, stub_url: str, sizes: Sizes) -> dict[str, Any]:
    kinds = [BEFORE_THE_ANSWER] if endpoint == answers.EMBEDDINGS else list(KINDS)
    return {
        kind: _leave(Job(target, endpoint, kind, sizes.num_leaving, sizes.body_bytes), stub_url)
        for kind in kinds
    }


def _leave(job: Job, stub_url: str) -> dict[str, Any]:
    exchanges = in_fresh_process(_clients, job)
    left_ns = {job.mark(i): one.left_ns for i, one in enumerate(exchanges) if one.left_ns}
    gone_ns = _seen(stub_url, left_ns)
    return figures(left_ns, gone_ns, job.num_clients)


def figures(left_ns: Mapping[str, int], gone_ns: Mapping[str, int], num_clients: int) -> dict[str, Any]:
    """What is never seen counts as long as it was waited for, and as an error; so does who could not leave."""
    seen_ms = [(gone_ns[mark] - left_ns[mark]) / 1e6 for mark in left_ns if mark in gone_ns]
    num_errors = num_clients - len(seen_ms)
    all_ms = [*seen_ms, *[SEEN_LIMIT_S * 1e3] * num_errors]
    return {"ms_p50": float(np.percentile(all_ms, 50)), "ms_max": max(all_ms), "num_errors": num_errors}


def _seen(stub_url: str, marks: Mapping[str, int]) -> dict[str, int]:
    """When the stub's connections for these were lost, as soon as all are."""
    deadline = time.monotonic() + SEEN_LIMIT_S
    while True:
        gone: dict[str, int] = httpx.get(stub_url + MARKS_PATH).json()["gone"]
        if marks.keys() <= gone.keys() or time.monotonic() > deadline:
            return gone
        time.sleep(0.1)


def _status(target: Target, endpoint: str) -> int:
    """What one plain request is answered with."""
    asked = body(endpoint, Plan(), is_stream=False, num_bytes=0)
    return uvloop.run(_together(target, [Request(target.head(endpoint, len(asked)) + asked)]))[0].status


def _clients(job: Job) -> list[Exchange]:
    return uvloop.run(_together(job.target, [job.request(i) for i in range(job.num_clients)]))


async def _together(target: Target, requests: Sequence[Request]) -> list[Exchange]:
    pool = Pool(target)

    async def ask(number: int) -> Exchange:
        await asyncio.sleep(number * STAGGER_S)
        return await pool.ask(requests[number])

    async with asyncio.timeout(CLIENTS_LIMIT_S), asyncio.TaskGroup() as group:
        tasks = [group.create_task(ask(i)) for i in range(len(requests))]
    pool.close()
    return [task.result() for task in tasks]
