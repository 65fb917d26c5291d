"""Agent patterns for solving a task, with one way to run, measure and report all of them.

The tasks are held-out questions. Each is solved with and without speculation, with the same seeds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.progress import track

from examples.agentic_sql.database import QueryResult, open_all
from examples.agentic_sql.question_set import held_out
from examples.agentic_sql.task import Task
from examples.saving import table as saving
from examples.saving.calls import Call, Caller
from examples.saving.openai_client import APIConnectionError, AsyncOpenAI
from examples.saving.server import serving
from examples.saving.stage_row import StageRow, stage_rows

_SEEDS_PER_TASK = 1000


@dataclass(frozen=True, slots=True)
class Solution:
    """The final result, and those of the tries behind it."""

    result: QueryResult
    tries: Sequence[QueryResult]


Solve = Callable[[Task, Caller, argparse.Namespace], Awaitable[Solution]]


@dataclass(frozen=True, slots=True)
class Pattern:
    """An agent pattern.

    Attributes:
        name: name of the workflow, the prefix of every stage.
        description: text for the command line's help.
        stages: stages in the order of the table.
        json_stages: stages that answer in JSON.
        tries: label of the tries in the report.
        solve: function that solves one task.
    """

    name: str
    description: str
    stages: tuple[str, ...]
    json_stages: tuple[str, ...]
    tries: str
    solve: Solve


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt at one task."""

    is_right: bool
    tries_right: tuple[bool, ...]
    elapsed_s: float
    calls: tuple[Call, ...]

    @property
    def texts(self) -> list[tuple[str, str]]:
        """Text of every call, in a fixed order."""
        return sorted((call.stage, call.text) for call in self.calls)

    @property
    def num_plain_steps(self) -> int:
        """Number of decode steps without speculation; prefill produces the first token of a call."""
        return sum(max(call.num_output_tokens - 1, 0) for call in self.calls)


@dataclass(frozen=True, slots=True)
class Saving:
    """All tasks, with speculation (``on``) and without (``off``)."""

    pattern: Pattern
    on: list[Attempt] = field(default_factory=list)
    off: list[Attempt] = field(default_factory=list)

    @property
    def rows(self) -> list[StageRow]:
        """One row per stage, then the total."""
        on, off = ([call for one in attempts for call in one.calls] for attempts in (self.on, self.off))
        return stage_rows(self.pattern.stages, on, off)

    @property
    def outputs_identical(self) -> bool:
        """True if every call returned the same text both times."""
        return all(a.texts == b.texts for a, b in zip(self.on, self.off, strict=True))

    def summary(self) -> dict[str, object]:
        """Return the main figures."""
        seconds = {
            name: sum(one.elapsed_s for one in by) for name, by in (("on", self.on), ("off", self.off))
        }
        tries = [is_right for one in self.on for is_right in one.tries_right]
        return {
            "steps": self.rows[-1].steps,
            "steps_without": sum(one.num_plain_steps for one in self.off),
            "seconds": round(seconds["on"], 3),
            "seconds_without": round(seconds["off"], 3),
            "speedup": round(seconds["off"] / seconds["on"], 3),
            "right": sum(one.is_right for one in self.on),
            "right_without": sum(one.is_right for one in self.off),
            "tasks": len(self.on),
            "tries_right": sum(tries),
            "tries": len(tries),
            "outputs_identical": self.outputs_identical,
        }

    def lines(self) -> list[str]:
        """Return the main figures as lines of text."""
        figures = self.summary()
        steps = f"{figures['steps_without']:,} -> {figures['steps']:,}"
        fewer = int(str(figures["steps_without"])) / max(int(str(figures["steps"])), 1)
        times = f"{figures['seconds_without']} s -> {figures['seconds']} s"
        return [
            f"right: {figures['right']} of {figures['tasks']} answers, "
            f"{figures['tries_right']} of {figures['tries']} {self.pattern.tries}",
            f"decode steps {steps} ({fewer:.1f} times fewer), time {times} ({figures['speedup']}x)",
            "outputs identical with and without: "
            + ("yes" if self.outputs_identical else "NO (this server does not repeat a seed's samples)"),
        ]


def options_of(pattern: Pattern) -> argparse.ArgumentParser:
    """Return a parser with the options of all patterns."""
    parser = argparse.ArgumentParser(
        prog=f"python -m examples.{pattern.name}",
        description=pattern.description,
        epilog="Without --url it starts `agentspec serve` with the bundled model, and stops it again.",
    )
    parser.add_argument("--url", metavar="URL", help="base URL of an OpenAI-compatible server, with /v1")
    parser.add_argument("--api-key", default="none", help="its API key")
    parser.add_argument("--model", help="model name (default: the first one the server lists)")
    parser.add_argument("--questions", type=int, default=8, metavar="N", help="tasks (%(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the JSON line here")
    return parser


def run(pattern: Pattern, options: argparse.Namespace) -> int:
    """Solve and report; return 0 if outputs were identical, 1 if not, 2 without a server."""
    console = Console(width=None if sys.stdout.isatty() else 130)
    try:
        with _server(options, console) as url, tempfile.TemporaryDirectory() as folder:
            saved = asyncio.run(measure(pattern, url, options, Path(folder), console))
    except APIConnectionError:
        console.print(f"no server answers at {options.url}")
        return 2
    console.print(saving.table(f"{pattern.name}: what speculation saved", saved.rows))
    for line in saved.lines():
        console.print(line, highlight=False)
    arguments = {name: value for name, value in vars(options).items() if name not in ("json", "api_key")}
    figures = {"summary": saved.summary(), "stages": saving.figures(saved.rows)}
    line = json.dumps({**figures, "provenance": saving.provenance(arguments)})
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(line + "\n")
    print(line, flush=True)
    return 0 if saved.outputs_identical else 1


def _server(options: argparse.Namespace, console: Console) -> AbstractContextManager[str]:
    return nullcontext(options.url) if options.url else serving(console)


async def measure(
    pattern: Pattern, url: str, options: argparse.Namespace, folder: Path, console: Console
) -> Saving:
    """Solve each task with and without speculation, in alternating order."""
    databases = open_all(folder)
    questions = held_out(options.questions, databases)
    saved = Saving(pattern)
    async with AsyncOpenAI(base_url=url, api_key=options.api_key, max_retries=1) as client:
        model = options.model or (await client.models.list()).data[0].id
        for number, question in enumerate(track(questions, "questions", console=console)):
            task = Task(question, databases[question.query.database], number * _SEEDS_PER_TASK)
            for speculate in (True, False) if number % 2 else (False, True):
                session = f"{pattern.name}-{number}"
                caller = Caller(
                    client,
                    model,
                    pattern.name,
                    session,
                    speculate=speculate,
                    json_stages=pattern.json_stages,
                )
                (saved.on if speculate else saved.off).append(await _attempt(pattern, task, caller, options))
    return saved


async def _attempt(pattern: Pattern, task: Task, caller: Caller, options: argparse.Namespace) -> Attempt:
    begin_s = time.perf_counter()
    solution = await pattern.solve(task, caller, options)
    elapsed_s = time.perf_counter() - begin_s
    tries_right = tuple(task.is_right(one) for one in solution.tries)
    return Attempt(task.is_right(solution.result), tries_right, elapsed_s, tuple(caller.calls))
