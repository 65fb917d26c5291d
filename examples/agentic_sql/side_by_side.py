"""``python -m examples.agentic_sql.side_by_side``: the tagged pipeline and the untagged graph in one run.

Each pipeline, with and without speculation, is a separate tenant, so none learns from another. Questions
alternate on one server with a fixed draft token cost (``--price``), so only the pipelines differ. The figures
are the server's: they exclude the overhead of the client's framework per token.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from functools import reduce
from itertools import pairwise, product
from pathlib import Path
from statistics import median

import httpx
from rich.console import Console
from rich.progress import track
from rich.table import Table

from agentspec.errors import ConfigError
from examples.agentic_sql.database import Database, open_all
from examples.agentic_sql.pipelines import Pipeline, Tagged, untagged
from examples.agentic_sql.question_set import held_out
from examples.agentic_sql.run import Run
from examples.saving.openai_client import AsyncOpenAI
from examples.saving.server import serving
from examples.saving.table import provenance

MOST_APART = 0.03
TAGGED, GRAPH = "tagged", "graph"
ALL = "all"
PRICE = "0.25"  # fixed, independent of timing: drafts are the same in every run
WAYS = tuple(product((TAGGED, GRAPH), (True, False)))  # pipeline, with speculation or not

Way = tuple[str, bool]
Texts = list[list[tuple[str, str]]]


@dataclass(frozen=True, slots=True)
class Counted:
    """The server's counters at one stage."""

    num_requests: int = 0
    num_output_tokens: int = 0
    num_steps: int = 0
    num_accepted_tokens: int = 0
    decode_s: float = 0.0

    @property
    def per_step(self) -> float:
        """Output tokens after the first one, per decode step."""
        return (self.num_steps + self.num_accepted_tokens) / self.num_steps if self.num_steps else 0.0

    def plus(self, other: Counted) -> Counted:
        """Return the sum of both."""
        names = Counted.__slots__
        return Counted(**{name: getattr(self, name) + getattr(other, name) for name in names})


@dataclass(frozen=True, slots=True)
class Side:
    """One pipeline's counters at one stage, with and without speculation.

    ``speedup`` is decode time without / with, as the median over the questions. The tokens are the same, and
    the median ignores short disturbances by other load on the machine.
    """

    on: Counted
    off: Counted
    speedup: float


@dataclass(frozen=True, slots=True)
class Row:
    """Both pipelines at one stage."""

    stage: str
    tagged: Side
    graph: Side

    @property
    def per_step_apart(self) -> float:
        """Relative difference of the tokens per step."""
        return apart(self.tagged.on.per_step, self.graph.on.per_step)

    @property
    def speedup_apart(self) -> float:
        """Relative difference of the speed-ups."""
        return apart(self.tagged.speedup, self.graph.speedup)

    def misses(self) -> list[str]:
        """Return all deviations; speed-ups only of the total, as decode times of one stage are too short."""
        one, other = self.tagged.on, self.graph.on
        same = (one.num_requests, one.num_output_tokens) == (other.num_requests, other.num_output_tokens)
        wrong = [] if same else [f"{self.stage}: requests or output tokens differ"]
        if self.per_step_apart > MOST_APART:
            wrong.append(f"{self.stage}: tokens per step {self.per_step_apart:.1%} apart")
        if self.stage == ALL and self.speedup_apart > MOST_APART:
            wrong.append(f"{self.stage}: speed-ups {self.speedup_apart:.1%} apart")
        return wrong


ByStage = Mapping[str, Counted]


def apart(one: float, other: float) -> float:
    """Return the difference relative to ``one``."""
    return abs(other - one) / one if one else float(other != one)


def rows_of(counted: Mapping[Way, Sequence[ByStage]]) -> list[Row]:
    """Return rows by stage, in order of first use, then the total, from the counters after each question."""
    last = {way: after[-1] for way, after in counted.items()}
    stages = dict.fromkeys(stage for by_stage in last.values() for stage in by_stage if stage != ALL)

    def side(name: str, stage: str) -> Side:
        on, off = (last[name, speculate].get(stage, Counted()) for speculate in (True, False))
        return Side(on, off, _median_ratio(counted[name, False], counted[name, True], stage))

    return [Row(stage, side(TAGGED, stage), side(GRAPH, stage)) for stage in (*stages, ALL)]


def _median_ratio(off: Sequence[ByStage], on: Sequence[ByStage], stage: str) -> float:
    """Return the median over the questions of the decode time ratio at this stage."""
    seconds = zip(_each(off, stage), _each(on, stage), strict=True)
    return median([without / with_it for without, with_it in seconds if with_it > 0] or [0.0])


def _each(so_far: Sequence[ByStage], stage: str) -> list[float]:
    sums = [0.0, *(by_stage.get(stage, Counted()).decode_s for by_stage in so_far)]
    return [after - before for before, after in pairwise(sums)]


async def measure(
    base_url: str, num_questions: int, folder: Path, console: Console
) -> tuple[list[Row], bool]:
    """Return the rows, and True if all four runs have the same texts. The order rotates per question."""
    databases = open_all(folder)
    questions = held_out(num_questions, databases)
    texts: dict[Way, Texts] = {way: [] for way in WAYS}
    counted: dict[Way, list[ByStage]] = {way: [] for way in WAYS}
    async with AsyncExitStack() as stack:
        runs = {}
        for name, speculate in WAYS:
            pipeline = await _pipeline(name, base_url, _key(name, speculate), databases, stack)
            runs[name, speculate] = Run(pipeline, databases)
        for number, question in enumerate(track(questions, "questions", console=console)):
            first = number % len(WAYS)
            for name, speculate in WAYS[first:] + WAYS[:first]:
                outcome = await runs[name, speculate].outcome(number, question, speculate=speculate)
                texts[name, speculate].append(outcome.texts)
                counted[name, speculate].append(_counted(base_url, _key(name, speculate)))
    return rows_of(counted), all(one == texts[WAYS[0]] for one in texts.values())


async def _pipeline(
    name: str, base_url: str, key: str, databases: dict[str, Database], stack: AsyncExitStack
) -> Pipeline:
    client = await stack.enter_async_context(AsyncOpenAI(base_url=base_url, api_key=key, max_retries=1))
    model = (await client.models.list()).data[0].id
    if name == GRAPH:
        return stack.enter_context(untagged(base_url, key, model, databases))
    return Tagged(client, model, databases)


def _key(name: str, speculate: bool) -> str:
    """Return the API key of the gateway, which is also the tenant's name."""
    return name if speculate else f"{name}-without"


def _counted(base_url: str, key: str) -> dict[str, Counted]:
    """Return the server's counters of a tenant."""
    url = f"{base_url.removesuffix('/v1')}/agentspec/stages"
    answer = httpx.get(url, headers={"Authorization": f"Bearer {key}"}).raise_for_status()
    by_stage = {
        one["stage"]: Counted(*(one[name] for name in Counted.__slots__)) for one in answer.json()["stages"]
    }
    return {**by_stage, ALL: reduce(Counted.plus, by_stage.values(), Counted())}


def table(rows: Iterable[Row]) -> Table:
    """Return a table with one row per stage and one for the total."""
    result = Table(title="AgenticSQL, tagged by hand and as an untagged graph", title_justify="left")
    result.add_column("stage")
    for heading in ("calls", "output tokens", "tokens/step", "apart", "speed-up", "apart"):
        result.add_column(heading, justify="right")
    for row in rows:
        if row.stage == ALL:
            result.add_section()
        one, other = row.tagged, row.graph
        result.add_row(
            row.stage,
            f"{one.on.num_requests} {other.on.num_requests}",
            f"{one.on.num_output_tokens} {other.on.num_output_tokens}",
            f"{one.on.per_step:.2f} {other.on.per_step:.2f}",
            f"{row.per_step_apart:.1%}",
            f"{one.speedup:.2f}x {other.speedup:.2f}x",
            f"{row.speedup_apart:.1%}",
        )
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 if stages and texts are the same and figures at most 3 % apart, else 1; 2 if it can't run."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.agentic_sql.side_by_side",
        description="The pipeline tagged by hand and as a LangGraph graph without tags, on one server.",
    )
    parser.add_argument("--questions", type=int, default=40, metavar="N", help="(%(default)s)")
    parser.add_argument("--price", default=PRICE, metavar="P", help="of a draft token (%(default)s)")
    options = parser.parse_args(arguments)
    console = Console(width=None if sys.stdout.isatty() else 110)
    keys = [part for way in WAYS for part in ("--api-key", f"{_key(*way)}={_key(*way)}")]
    try:
        with (
            tempfile.TemporaryDirectory() as folder,
            serving(console, *keys, "--price", options.price) as url,
        ):
            rows, same_texts = asyncio.run(measure(url, options.questions, Path(folder), console))
    except ConfigError as error:
        console.print(str(error), markup=False)
        return 2
    misses = [miss for row in rows for miss in row.misses()]
    misses += [] if same_texts else ["texts differ"]
    console.print(table(rows))
    console.print("\n".join(misses) or "same stages, same texts, figures at most 3 % apart", highlight=False)
    print(json.dumps({"rows": [asdict(row) for row in rows], "provenance": provenance(vars(options))}))
    return 1 if misses else 0


if __name__ == "__main__":
    sys.exit(main())
