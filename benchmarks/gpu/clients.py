"""Clients that make recorded calls: each takes a session, makes its calls in order, then takes the next."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.gpu.calls import Call, Calls, Load
from benchmarks.gpu.meter import Meter, percentiles_ms

Ask = Callable[[int, Call], AsyncIterator[Sequence[int]]]  # the tokens of each output of a call


@dataclass(slots=True)
class Traffic:
    """What clients saw.

    Attributes:
        num_tokens: output tokens of all calls.
        num_different: calls whose output is not the recorded one; forced, there can be none.
        ttft_s, tpot_s: per call, seconds to the first token, and per further token.
        is_whole: false if the time ran out before the calls did.
    """

    num_calls: int = 0
    num_different: int = 0
    ttft_s: list[float] = field(default_factory=list)
    tpot_s: list[float] = field(default_factory=list)
    is_whole: bool = True
    num_tokens: int = 0

    def figures(self, load_s: float) -> dict[str, Any]:
        """Return the figures for the JSON; the load took ``load_s`` seconds, to the end of its last call."""
        return {
            "load_s": load_s,
            "load_tokens_per_s": self.num_tokens / load_s,
            "num_calls": self.num_calls,
            "num_different": self.num_different,
            "is_whole": self.is_whole,
            "ttft_ms": percentiles_ms(self.ttft_s),
            "tpot_ms": percentiles_ms(self.tpot_s),
        }


async def make_calls(
    calls: Calls, load: Load, ask: Ask, new_meter: Callable[[], Meter], limit_s: float
) -> dict[str, Any]:
    """Make a load's calls; return its figures.

    Steps are counted until the first client finds no session left, so that all clients are busy. After
    ``limit_s`` seconds no call is begun.
    """
    sessions, traffic, meter = iter(calls.sessions[load.name]), Traffic(), new_meter()
    begin_s = time.perf_counter()
    measured: dict[str, Any] = {}

    async def serve() -> None:
        await _serve(calls, sessions, ask, traffic, begin_s + limit_s)
        if not measured:
            measured.update(meter.figures(time.perf_counter() - begin_s))

    async with asyncio.TaskGroup() as group:
        for _ in range(load.num_clients):
            group.create_task(serve())
    return {**measured, **traffic.figures(time.perf_counter() - begin_s)}


async def _serve(
    calls: Calls, sessions: Iterator[Sequence[int]], ask: Ask, traffic: Traffic, until_s: float
) -> None:
    for session in sessions:
        for number in session:
            if time.perf_counter() > until_s:
                traffic.is_whole = False
                return
            await _make(number, calls.calls[number], ask, traffic)


async def _make(number: int, call: Call, ask: Ask, traffic: Traffic) -> None:
    tokens: list[int] = []
    begin_s, first_s = time.perf_counter(), None
    async for new in ask(number, call):
        first_s = first_s or time.perf_counter()
        tokens += new
    end_s = time.perf_counter()
    traffic.num_calls += 1
    traffic.num_tokens += len(tokens)
    traffic.num_different += tokens != call.response.tolist()
    if first_s is not None:
        traffic.ttft_s.append(first_s - begin_s)
        if len(tokens) > 1:
            traffic.tpot_s.append((end_s - first_s) / (len(tokens) - 1))
