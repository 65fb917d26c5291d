"""``python -m examples.agentic_sql``: drive the workflow through a server and report what was saved."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import uuid
from collections.abc import Sequence
from pathlib import Path

from openai import APIConnectionError, AsyncOpenAI
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from examples.agentic_sql import report
from examples.agentic_sql.calls import Caller
from examples.agentic_sql.database import Database, open_all
from examples.agentic_sql.measurement import Measurement, Outcome
from examples.agentic_sql.question_set import held_out
from examples.agentic_sql.questions import Question
from examples.agentic_sql.server import Server
from examples.agentic_sql.workflow import answer


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.agentic_sql",
        description="Text to SQL by a team of model calls, with and without speculation.",
        epilog="Any OpenAI-compatible server will do: --base-url http://host:8000/v1 --model NAME",
    )
    parser.add_argument(
        "--base-url", default="http://127.0.0.1:8000/v1", help="server to drive (default: %(default)s)"
    )
    parser.add_argument("--api-key", default="none", help="its API key")
    parser.add_argument("--model", help="model name (default: the first one the server lists)")
    parser.add_argument(
        "--questions", type=int, default=40, metavar="N", help="held-out questions (default: %(default)s)"
    )
    parser.add_argument("--no-compare", action="store_true", help="skip the runs without speculation")
    parser.add_argument(
        "--serve", action="store_true", help="start `agentspec serve` first, with the bundled model"
    )
    parser.add_argument("--once", action="store_true", help="with --serve: stop after the table")
    parser.add_argument("--plot", type=Path, metavar="PNG", help="also draw the table")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the JSON line here")
    parser.add_argument(
        "--databases",
        type=Path,
        metavar="DIR",
        help="where the SQLite files live (default: a temporary folder)",
    )
    return parser.parse_args(arguments)


class Run:
    """One drive through the questions."""

    def __init__(self, client: AsyncOpenAI, model: str, databases: dict[str, Database]) -> None:
        self._client = client
        self._model = model
        self._databases = databases
        self._id = uuid.uuid4().hex[:8]

    async def outcome(self, number: int, question: Question, *, speculate: bool) -> Outcome:
        """One question through the pipeline."""
        session = f"{self._id}-{number}-{'on' if speculate else 'off'}"
        caller = Caller(self._client, self._model, session, speculate=speculate)
        given = await answer(question.text, caller, self._databases)
        gold = self._databases[question.query.database].query(question.query.sql())
        is_correct = given.result.matches(gold, ordered=question.query.is_ordered)
        return Outcome(question.query, given, is_correct, tuple(caller.calls))

    async def measure(self, questions: list[Question], console: Console, *, compare: bool) -> Measurement:
        """All questions, each with and without in turn; which goes first alternates."""
        measurement = Measurement([], [])
        columns = (
            TextColumn("{task.description}"),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}"),
        )
        with Progress(*columns, console=console) as progress:
            task = progress.add_task("questions", total=len(questions), note="")
            for number, question in enumerate(questions):
                for speculate in ((True, False) if number % 2 else (False, True)) if compare else (True,):
                    outcomes = measurement.on if speculate else measurement.off
                    outcomes.append(await self.outcome(number, question, speculate=speculate))
                right = sum(o.is_correct for o in measurement.on)
                progress.update(task, advance=1, note=f"{right} right")
                if not console.is_terminal and (number + 1) % 10 == 0:
                    console.print(f"{number + 1}/{len(questions)} questions, {right} right")
        return measurement


def _show_examples(measurement: Measurement, questions: list[Question], console: Console) -> None:
    for question, outcome in list(zip(questions, measurement.on, strict=True))[:3]:
        console.print(
            f"[bold]{question.text}[/bold]\n  {outcome.answer.text}\n  [dim]{outcome.answer.sql}[/dim]",
            highlight=False,
        )


async def drive(options: argparse.Namespace, console: Console) -> Measurement:
    """Run the questions, print the table, write what was asked for."""
    directory = options.databases or Path(tempfile.mkdtemp(prefix="agentic_sql-"))
    databases = open_all(directory)
    questions = held_out(options.questions, databases)
    async with AsyncOpenAI(base_url=options.base_url, api_key=options.api_key, max_retries=1) as client:
        model = options.model or (await client.models.list()).data[0].id
        console.print(f"driving {len(questions)} held-out questions through {model} at {options.base_url}")
        run = Run(client, model, databases)
        measurement = await run.measure(questions, console, compare=not options.no_compare)
    _show_examples(measurement, questions, console)
    console.print(report.table(measurement))
    for line in report.verdict(measurement, questions):
        console.print(line, highlight=False)
    if options.plot:
        options.plot.parent.mkdir(parents=True, exist_ok=True)
        report.plot(measurement, options.plot)
        console.print(f"plot written to {options.plot}")
    line = report.json_line(
        measurement, {"questions": options.questions, "model": model, "compare": not options.no_compare}
    )
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(line + "\n")
    print(line, flush=True)
    return measurement


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0 if outputs were identical (or not compared), 1 if not, 2 if there is no server."""
    options = parse(arguments)
    console = Console(width=None if sys.stdout.isatty() else 130)
    server = Server.start(options.base_url, console) if options.serve else None
    try:
        measurement = asyncio.run(drive(options, console))
        if server and not options.once:
            console.print(f"still serving at {options.base_url}; Ctrl-C stops")
            server.wait()
    except APIConnectionError:
        console.print(
            f"no server answers at {options.base_url}: start one with `agentspec serve`, or add --serve"
        )
        return 2
    except KeyboardInterrupt:
        return 0
    finally:
        if server:
            server.stop()
    return 1 if measurement.outputs_identical is False else 0


if __name__ == "__main__":
    sys.exit(main())
