"""The server's estimate of the time that drafts saved, against the same calls without drafts.

Blocks of questions are asked with drafts and without; the order alternates. The server's counters before and
after each block give both figures: ``saved_s`` of the calls with drafts, and the difference of the decode
times. Outputs are the same, so both decode the same tokens.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.table import Table

from agentspec.commands.run.figures import gained
from agentspec.errors import ConfigError
from agentspec.reporting.report import Announce, Report

BLOCK = 2  # minimum number of questions
ALL = "all"
TIMEOUT_S = 60.0

Stages = list[dict[str, Any]]


@dataclass(slots=True)
class Compared:
    """Seconds of one stage, summed over its calls; the estimate covers ``known_s`` of ``with_s``."""

    with_s: float = 0.0
    without_s: float = 0.0
    estimated_s: float = 0.0
    known_s: float = 0.0

    @property
    def saved_s(self) -> float:
        """Seconds saved, by comparison."""
        return self.without_s - self.with_s

    @property
    def ratio(self) -> float | None:
        """Estimated / compared; None if no time was saved."""
        return self.estimated_s / self.saved_s if self.saved_s > 0 else None

    def add(self, stage: Mapping[str, Any], *, speculate: bool) -> None:
        """Add a stage's seconds of one block."""
        if not speculate:
            self.without_s += stage["decode_s"]
            return
        self.with_s += stage["decode_s"]
        self.known_s += stage["measured_decode_s"]
        self.estimated_s += stage["saved_s"] or 0.0

    def plus(self, other: Compared) -> Compared:
        """Return the sums of both."""
        return Compared(
            self.with_s + other.with_s,
            self.without_s + other.without_s,
            self.estimated_s + other.estimated_s,
            self.known_s + other.known_s,
        )

    def figures(self) -> dict[str, float | None]:
        """Return the figures for the JSON line."""
        return {
            "with_s": self.with_s,
            "without_s": self.without_s,
            "known_s": self.known_s,
            "estimated_s": self.estimated_s,
            "saved_s": self.saved_s,
            "ratio": self.ratio,
        }


def make_report(
    num_questions: int, clients: Sequence[int], threads: int | None, announce: Announce
) -> Report:
    """Measure, and return the report.

    Raises:
        ConfigError: the example is missing: it is in the repository, not in the package.
    """
    try:
        from examples.saving.server import serving
    except ModuleNotFoundError:
        raise ConfigError(
            "the calls are those of examples/agentic_sql: run `python -m lab` in the repository"
        ) from None
    by_clients: dict[int, dict[str, Compared]] = {}
    options = [] if threads is None else ["--threads", str(threads)]
    for number in clients:
        announce(f"{number} at a time")
        with serving(Console(stderr=True), *options) as url:  # a new server each time
            by_clients[number] = asyncio.run(_measure(url, num_questions, number))
    return Report(
        figures={"seconds": {str(number): _figures(stages) for number, stages in by_clients.items()}},
        table=table(by_clients),
        origin={"arguments": {"questions": num_questions, "clients": list(clients), "threads": threads}},
    )


async def _measure(url: str, num_questions: int, num_clients: int) -> dict[str, Compared]:
    from openai import AsyncOpenAI

    from examples.agentic_sql.database import open_all
    from examples.agentic_sql.pipelines import Tagged
    from examples.agentic_sql.question_set import held_out
    from examples.agentic_sql.run import Run

    compared: dict[str, Compared] = {}
    with tempfile.TemporaryDirectory() as folder:
        databases = open_all(Path(folder))
        questions = held_out(num_questions, databases)
        async with AsyncOpenAI(base_url=url, api_key="none") as client:
            model = (await client.models.list()).data[0].id
            run = Run(Tagged(client, model, databases), databases)
            size = max(BLOCK, num_clients)
            for begin in range(0, num_questions, size):
                block = questions[begin : begin + size]
                for speculate in (True, False) if begin // size % 2 else (False, True):
                    before = await _stages(url)
                    slots = asyncio.Semaphore(num_clients)

                    async def ask(number: int, speculate: bool = speculate) -> None:
                        async with slots:  # noqa: B023
                            await run.outcome(number, questions[number], speculate=speculate)

                    await asyncio.gather(*(ask(begin + i) for i in range(len(block))))
                    for stage in gained(before, await _stages(url)):
                        compared.setdefault(stage["stage"], Compared()).add(stage, speculate=speculate)
    return compared


async def _stages(url: str) -> Stages:
    async with httpx.AsyncClient(trust_env=False, timeout=TIMEOUT_S) as client:
        answer = await client.get(f"{url.removesuffix('/v1')}/agentspec/stages")
    stages: Stages = answer.raise_for_status().json()["stages"]
    return stages


def _with_all(stages: Mapping[str, Compared]) -> dict[str, Compared]:
    total = Compared()
    for one in stages.values():
        total = total.plus(one)
    return {**stages, ALL: total}


def _figures(stages: Mapping[str, Compared]) -> dict[str, dict[str, float | None]]:
    return {name: one.figures() for name, one in _with_all(stages).items()}


def table(by_clients: Mapping[int, Mapping[str, Compared]]) -> Table:
    """Return a table of seconds, with a row per number of clients and stage."""
    result = Table(title="decode time, summed over calls, in seconds", title_justify="left")
    for heading in ("clients", "stage", "without", "with", "of it known", "saved", "estimated", "ratio"):
        result.add_column(heading, justify="left" if heading == "stage" else "right", no_wrap=True)
    for number, stages in by_clients.items():
        for name, one in _with_all(stages).items():
            seconds = (one.without_s, one.with_s, one.known_s, one.saved_s, one.estimated_s)
            ratio = "-" if one.ratio is None else f"{one.ratio:.2f}"
            result.add_row(str(number), name, *(f"{value:.2f}" for value in seconds), ratio)
        result.add_section()
    return result
