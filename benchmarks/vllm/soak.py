"""A long run with many clients, some of which hang up: growth of memory, and differences of outputs.

The outputs without speculation are recorded first. Budgets are so small that outputs are evicted throughout.
The memory of all of the server's processes is sampled.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from agentspec.reporting.report import Announce
from benchmarks.vllm.chats import Chat, load
from benchmarks.vllm.client import Answer, ask, ask_all, clients
from benchmarks.vllm.differences import Difference, differences
from benchmarks.vllm.lossless import is_tie
from benchmarks.vllm.server import Server
from benchmarks.vllm.sizes import Sizes
from benchmarks.vllm.speculators import NONE, Engine, Speculator

SEED = 31
NUM_CLIENTS = 16
NUM_TENANTS = 2
LEAVES = 0.15  # share of the requests with a client that hangs up
MOST_SEEN = 48  # maximum number of tokens before it does
BUDGET_MB = 1
SETTINGS = {f"{scope}_budget_mb": BUDGET_MB for scope in ("stage", "tenant", "total")}
OURS = Speculator("agentspec", settings=SETTINGS)
SAMPLE_S = 5.0
JUDGED_FROM = 1 / 3  # share of the time, to its end


@dataclass(slots=True)
class Soak:
    """Results so far.

    Attributes:
        samples: seconds since the start, bytes of memory of the server, bytes of its trees.
        found: differences from the reference.
    """

    num_requests: int = 0
    num_left: int = 0
    num_tokens: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    found: list[Difference] = field(default_factory=list)
    samples: list[tuple[float, int, int]] = field(default_factory=list)


def measure(engine: Engine, sizes: Sizes, log_dir: Path, announce: Announce) -> dict[str, Any]:
    """Return the figures for the JSON.

    Raises:
        AgentSpecError: a server did not start, or refused a request without speculation.
    """
    chats = [_of_tenant(chat, i) for i, chat in enumerate(load(sizes.num_soak_chats, SEED))]
    announce(f"soak: {len(chats)} answers without speculation")
    with engine.serving(NONE, log_dir) as server:
        references = ask_all(server.url, chats, NUM_CLIENTS)
    announce(f"soak: {sizes.soak_minutes:g} minutes")
    with engine.serving(OURS, log_dir) as server:
        soak = asyncio.run(run(server, chats, references, sizes.soak_minutes * 60))
        counted, num_ties = server.counters(), sum(is_tie(server.url, one) for one in soak.found)
    return {
        "soak_rss_growth": growth(soak.samples),
        "outputs_identical": not soak.found,
        "num_different": len(soak.found),
        "num_ties": num_ties,
        "minutes": sizes.soak_minutes,
        "num_clients": NUM_CLIENTS,
        "num_requests": soak.num_requests,
        "num_left": soak.num_left,
        "num_tokens": soak.num_tokens,
        "num_errors": soak.errors.total(),
        "errors": dict(soak.errors),
        "budget_bytes": BUDGET_MB << 20,
        "most_tree_bytes": max(tree_bytes for _, _, tree_bytes in soak.samples),
        "accepted_per_step": counted.accepted_per_step,
        "series": [[at_s, rss, tree_bytes] for at_s, rss, tree_bytes in soak.samples],
    }


def _of_tenant(chat: Chat, number: int) -> Chat:
    return chat.tagged(tenant=f"tenant-{number // 7 % NUM_TENANTS}")


async def run(server: Server, chats: Sequence[Chat], references: Sequence[Answer], seconds: float) -> Soak:
    """Run NUM_CLIENTS clients that ask for random chats until the time is over."""
    soak, begin_s = Soak(), time.monotonic()
    async with asyncio.TaskGroup() as group:
        group.create_task(_sample(server, soak, begin_s, seconds))
        for number in range(NUM_CLIENTS):
            group.create_task(_client(server.url, chats, references, soak, begin_s + seconds, number))
    return soak


async def _client(
    url: str, chats: Sequence[Chat], references: Sequence[Answer], soak: Soak, end_s: float, number: int
) -> None:
    rng = random.Random(number)
    async with clients(url, 1) as http:
        while time.monotonic() < end_s:
            at = rng.randrange(len(chats))
            leave_after = rng.randint(1, MOST_SEEN) if rng.random() < LEAVES else None
            try:
                answer = await ask(http, chats[at], leave_after)
            except Exception as error:  # counted; the clients continue
                soak.errors[repr(error)] += 1
                await asyncio.sleep(1)
                continue
            soak.num_requests += 1
            soak.num_left += leave_after is not None
            soak.num_tokens += answer.num_tokens
            soak.found += differences([chats[at]], [references[at]], [answer], cut=[leave_after is not None])


async def _sample(server: Server, soak: Soak, begin_s: float, seconds: float) -> None:
    while (at_s := time.monotonic() - begin_s) < seconds:
        status = await asyncio.to_thread(server.control, "status")
        soak.samples.append((at_s, server.resident_bytes(), status["tree_bytes"]))
        await asyncio.sleep(SAMPLE_S)


def growth(samples: Sequence[tuple[float, int, int]]) -> float:
    """Return the relative growth of memory over the judged part, from a line fitted to its samples."""
    at_s, rss, _ = np.array(samples, float).T
    judged = at_s >= at_s[-1] * JUDGED_FROM
    slope, start = np.polyfit(at_s[judged], rss[judged], 1)
    first, last = (start + slope * at_s[judged][i] for i in (0, -1))
    return float(last / first - 1)
