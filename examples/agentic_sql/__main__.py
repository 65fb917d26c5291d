"""``python -m examples.agentic_sql``: drive the workflow through a server and report the savings."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from rich.console import Console

from agentspec.errors import ConfigError
from examples.agentic_sql import report
from examples.agentic_sql.database import Database, open_all
from examples.agentic_sql.measurement import Measurement
from examples.agentic_sql.pipelines import Pipeline, Tagged, untagged
from examples.agentic_sql.question_set import held_out
from examples.agentic_sql.questions import Question
from examples.agentic_sql.run import Run
from examples.saving.openai_client import APIConnectionError, AsyncOpenAI
from examples.saving.server import Server


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
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
    parser.add_argument("--graph", action="store_true", help="as a LangGraph graph, which names no stage")
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


def _show_examples(measurement: Measurement, questions: list[Question], console: Console) -> None:
    for question, outcome in list(zip(questions, measurement.on, strict=True))[:3]:
        console.print(
            f"[bold]{question.text}[/bold]\n  {outcome.answer.text}\n  [dim]{outcome.answer.sql}[/dim]",
            highlight=False,
        )


def _pipeline(
    options: argparse.Namespace, client: AsyncOpenAI, model: str, databases: dict[str, Database]
) -> AbstractContextManager[Pipeline]:
    if options.graph:
        return untagged(options.base_url, options.api_key, model, databases)
    return nullcontext(Tagged(client, model, databases))


async def drive(options: argparse.Namespace, console: Console) -> Measurement:
    """Run the questions, print the table, write the requested files."""
    directory = options.databases or Path(tempfile.mkdtemp(prefix="agentic_sql-"))
    databases = open_all(directory)
    questions = held_out(options.questions, databases)
    async with AsyncOpenAI(base_url=options.base_url, api_key=options.api_key, max_retries=1) as client:
        model = options.model or (await client.models.list()).data[0].id
        console.print(f"driving {len(questions)} held-out questions through {model} at {options.base_url}")
        with _pipeline(options, client, model, databases) as pipeline:
            run = Run(pipeline, databases)
            measurement = await run.measure(questions, console, compare=not options.no_compare)
    _show_examples(measurement, questions, console)
    console.print(report.table(measurement))
    for line in report.verdict(measurement, questions):
        console.print(line, highlight=False)
    if options.plot:
        options.plot.parent.mkdir(parents=True, exist_ok=True)
        report.plot(measurement, options.plot)
        console.print(f"plot written to {options.plot}")
    arguments = {"questions": options.questions, "model": model, "compare": not options.no_compare}
    line = report.json_line(measurement, {**arguments, "graph": options.graph})
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(line + "\n")
    print(line, flush=True)
    return measurement


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 if outputs were identical or not compared, 1 if not, 2 without a server."""
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
    except ConfigError as error:
        console.print(str(error), markup=False)
        return 2
    except KeyboardInterrupt:
        return 0
    finally:
        if server:
            server.stop()
    return 1 if measurement.outputs_identical is False else 0


if __name__ == "__main__":
    sys.exit(main())
