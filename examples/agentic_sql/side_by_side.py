"""``python -m examples.agentic_sql.side_by_side``: the tagged pipeline and the untagged graph in one run.

Each is a tenant of its own, so that neither learns from the other; questions take turns on one server, at one
price of a draft token, so that what differs is the pipelines.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import httpx
from openai import AsyncOpenAI
from rich.console import Console
from rich.progress import track
from rich.table import Table

from agentspec.errors import ConfigError
from examples.agentic_sql.database import open_all
from examples.agentic_sql.measurement import Measurement, Outcome
from examples.agentic_sql.pipelines import Tagged, untagged
from examples.agentic_sql.question_set import held_out
from examples.agentic_sql.run import Run
from examples.saving import table as saving
from examples.saving.server import serving
from examples.saving.stage_row import ALL, StageRow

MOST_APART = 0.03
TAGGED, GRAPH = "tagged", "graph"  # the tenants, and their keys
PRICE = "0.25"  # one that does not follow the clock: drafts are the same in every run


@dataclass(frozen=True, slots=True)
class Apart:
    """How far the graph's row is from the tagged pipeline's: shares, 0.03 = 3 %.

    The speed-ups are medians over the questions: the rows' own hang on whatever else the machine did.
    """

    tagged: StageRow
    graph: StageRow
    speedups: tuple[float, float]

    @property
    def output_tokens(self) -> float:
        """Of all calls."""
        return apart(self.tagged.output_tokens, self.graph.output_tokens)

    @property
    def per_step(self) -> float:
        """Output tokens per decode step."""
        return apart(self.tagged.accepted_per_step, self.graph.accepted_per_step)

    @property
    def speedup(self) -> float:
        """Time per output token without / with speculation."""
        return apart(*self.speedups)


def apart(one: float, other: float) -> float:
    """By which share of ``one`` they differ."""
    return abs(other - one) / one if one else float(other != one)


def median_speedup(measurement: Measurement, stage: str) -> float:
    """Time to decode a question's calls of this stage without / with speculation, of the middle question."""

    def decode_s(outcome: Outcome) -> float:
        return sum(call.decode_s for call in outcome.calls if stage in (ALL, call.stage))

    pairs = zip(measurement.on, measurement.off, strict=True)
    ratios = [decode_s(off) / decode_s(on) for on, off in pairs if decode_s(on)]
    return median(ratios) if ratios else 0.0


@dataclass(frozen=True, slots=True)
class Both:
    """What was measured of each, and the stages that the gateway counted for each, with their requests."""

    by_tenant: Mapping[str, Measurement]
    stages: Mapping[str, Mapping[str, int]]

    @property
    def rows(self) -> list[Apart]:
        """By stage, then the whole."""
        graph = {row.stage: row for row in self.by_tenant[GRAPH].rows}
        return [
            Apart(row, graph.get(row.stage, StageRow(row.stage)), self._speedups(row.stage))
            for row in self.by_tenant[TAGGED].rows
        ]

    def _speedups(self, stage: str) -> tuple[float, float]:
        tagged, graph = (median_speedup(self.by_tenant[tenant], stage) for tenant in (TAGGED, GRAPH))
        return tagged, graph

    @property
    def texts_identical(self) -> bool:
        """Both wrote the same text at every stage of every question, with and without speculation."""
        first, *others = (
            [outcome.texts for outcome in outcomes]
            for one in self.by_tenant.values()
            for outcomes in (one.on, one.off)
        )
        return all(other == first for other in others)

    @property
    def stages_identical(self) -> bool:
        """The gateway saw the same stages, as often."""
        return self.stages[TAGGED] == self.stages[GRAPH]

    @property
    def misses(self) -> list[str]:
        """What is not as it should be; empty if all is."""
        wrong = [] if self.texts_identical else ["texts differ"]
        wrong += [] if self.stages_identical else [f"stages differ: {dict(self.stages)}"]
        for row in self.rows:
            if row.output_tokens or row.per_step > MOST_APART:
                wrong.append(f"{row.tagged.stage}: tokens per step {row.per_step:.1%} apart")
        whole = self.rows[-1].speedup  # of a single stage it is too short a time
        return [*wrong, *([f"speed-up {whole:.1%} apart"] if whole > MOST_APART else [])]


async def measure(base_url: str, num_questions: int, folder: Path, console: Console) -> Both:
    """Both pipelines, with and without speculation, question by question; who goes first alternates."""
    databases = open_all(folder)
    questions = held_out(num_questions, databases)
    measured = {TAGGED: Measurement([], []), GRAPH: Measurement([], [])}
    async with AsyncOpenAI(base_url=base_url, api_key=TAGGED, max_retries=1) as client:
        model = (await client.models.list()).data[0].id
        with untagged(base_url, GRAPH, model, databases) as graph:
            runs = {TAGGED: Run(Tagged(client, model, databases), databases), GRAPH: Run(graph, databases)}
            turns = [(tenant, speculate) for speculate in (True, False) for tenant in runs]
            for number, question in enumerate(track(questions, "questions", console=console)):
                first = number % len(turns)
                for tenant, speculate in turns[first:] + turns[:first]:
                    outcome = await runs[tenant].outcome(number, question, speculate=speculate)
                    (measured[tenant].on if speculate else measured[tenant].off).append(outcome)
    return Both(measured, {tenant: _counted(base_url, tenant) for tenant in measured})


def _counted(base_url: str, key: str) -> dict[str, int]:
    """The gateway's own account of a tenant: requests by stage."""
    answer = httpx.get(
        f"{base_url.removesuffix('/v1')}/agentspec/stages", headers={"Authorization": f"Bearer {key}"}
    )
    return {one["stage"]: one["num_requests"] for one in answer.raise_for_status().json()["stages"]}


def table(rows: Iterable[Apart]) -> Table:
    """One row per stage and one for the whole."""
    result = Table(title="AgenticSQL, tagged by hand and as an untagged graph", title_justify="left")
    result.add_column("stage")
    for heading in ("calls", "output tokens", "tokens/step", "apart", "speed-up", "apart"):
        result.add_column(heading, justify="right")
    for row in rows:
        if row.tagged.stage == ALL:
            result.add_section()
        one, other = row.tagged, row.graph
        result.add_row(
            one.stage,
            f"{one.calls} {other.calls}",
            f"{one.output_tokens} {other.output_tokens}",
            f"{one.accepted_per_step:.2f} {other.accepted_per_step:.2f}",
            f"{row.per_step:.1%}",
            "{:.2f}x {:.2f}x".format(*row.speedups),
            f"{row.speedup:.1%}",
        )
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0 if stages and texts are the same and figures at most 3 % apart, else 1."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.agentic_sql.side_by_side",
        description="The pipeline tagged by hand and as a LangGraph graph without tags, on one server.",
    )
    parser.add_argument("--questions", type=int, default=40, metavar="N", help="(%(default)s)")
    parser.add_argument("--price", default=PRICE, metavar="P", help="of a draft token (%(default)s)")
    options = parser.parse_args(arguments)
    console = Console(width=None if sys.stdout.isatty() else 110)
    keys = ("--api-key", f"{TAGGED}={TAGGED}", "--api-key", f"{GRAPH}={GRAPH}")
    try:
        with (
            tempfile.TemporaryDirectory() as folder,
            serving(console, *keys, "--price", options.price) as url,
        ):
            both = asyncio.run(measure(url, options.questions, Path(folder), console))
    except ConfigError as error:
        console.print(str(error), markup=False)
        return 2
    console.print(table(both.rows))
    console.print("\n".join(both.misses) or "same stages, same texts, figures at most 3 % apart")
    by_tenant = {tenant: saving.figures(one.rows) for tenant, one in both.by_tenant.items()}
    print(json.dumps({"stages": by_tenant, "provenance": saving.provenance(vars(options))}), flush=True)
    return 1 if both.misses else 0


if __name__ == "__main__":
    sys.exit(main())
