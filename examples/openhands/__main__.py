"""``python -m examples.openhands``: an OpenHands agent repairs repositories; report the savings."""

from __future__ import annotations

import argparse
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx
from rich.console import Console

from agentspec.adapters.openhands import instrument
from agentspec.errors import ConfigError
from examples.openhands import report
from examples.openhands.author import WORKFLOW, record
from examples.openhands.checkpoint import write_checkpoint
from examples.openhands.figures import counted, rows, since
from examples.openhands.repair import Repair, model_at, repair
from examples.openhands.report import Outcome
from examples.openhands.task import Task, tasks
from examples.openhands.workspace import ROOT, sandbox
from examples.saving.server import serving


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.openhands",
        description="OpenHands repairs small repositories, with and without speculation. Without --url no "
        "model is needed: answers that were written by hand are recorded, and replayed in real steps.",
    )
    parser.add_argument("--url", help="an OpenAI-compatible server: http://127.0.0.1:8000/v1")
    parser.add_argument("--model", metavar="NAME", help="its model (default: the first one it lists)")
    parser.add_argument("--api-key", default="none", metavar="KEY", help="its API key")
    parser.add_argument(
        "--task", action="append", default=[], metavar="NAME", help="only this task; may be repeated"
    )
    parser.add_argument("--no-compare", action="store_true", help="skip the runs without speculation")
    parser.add_argument("--record", type=Path, metavar="FILE", help="only write the record, for --trace FILE")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the JSON line here")
    parser.add_argument(
        "--checkpoint",
        type=Path,
        metavar="DIR",
        help="without --url: what takes the steps (default: a small shape with random weights)",
    )
    parser.add_argument(
        "--server-python",
        default=sys.executable,
        metavar="PYTHON",
        help="without --url: a Python with agentspec-serving[engine], if this one has none",
    )
    return parser.parse_args(arguments)


@contextmanager
def _server(options: argparse.Namespace, chosen: list[Task], console: Console) -> Iterator[str]:
    """Yield the base URL to drive: the given one, or that of a server that replays the record."""
    if options.url:
        yield options.url
        return
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "record.jsonl"
        _record(chosen, file, console)
        checkpoint = options.checkpoint or Path(folder) / "small-shape"
        if options.checkpoint is None:
            write_checkpoint(checkpoint, file)
        replaying = ("--engine", "replay", "--trace", str(file), "--model", str(checkpoint))
        with serving(console, *replaying, python=options.server_python) as url:
            yield url


def _record(chosen: list[Task], file: Path, console: Console) -> None:
    with console.status("recording the answers that were written by hand"):
        repairs = record(chosen, file)
    num_calls = len(file.read_text(encoding="utf-8").splitlines())
    console.print(
        f"recorded {num_calls} calls of {len(repairs)} tasks, answers written by hand", highlight=False
    )


def drive(options: argparse.Namespace, chosen: list[Task], url: str, console: Console) -> Outcome:
    """Repair all tasks, first without speculation, then with it."""
    name = options.model or _first_model(url, options.api_key)
    undo = instrument(workflow=WORKFLOW)
    try:
        start = counted(url)
        off = [] if options.no_compare else _repairs(chosen, url, name, options, console, speculate=False)
        middle = counted(url)
        on = _repairs(chosen, url, name, options, console, speculate=True)
        end = counted(url)
    finally:
        undo()
    return Outcome(on, off, rows(since(middle, end), since(start, middle)))


def _repairs(
    chosen: list[Task],
    url: str,
    name: str,
    options: argparse.Namespace,
    console: Console,
    *,
    speculate: bool,
) -> list[Repair]:
    way = "with" if speculate else "without"
    repairs = []
    for number, task in enumerate(chosen, 1):
        with console.status(f"{way} speculation, {number} of {len(chosen)}: {task.name}"):
            repairs.append(repair(task, model_at(url, name, options.api_key, speculate=speculate)))
    return repairs


def _first_model(url: str, key: str) -> str:
    headers = {"authorization": f"Bearer {key}"}
    try:
        answer = httpx.get(f"{url.rstrip('/')}/models", headers=headers, timeout=10.0, trust_env=False)
        name: str = answer.raise_for_status().json()["data"][0]["id"]
    except (httpx.HTTPError, ValueError, LookupError) as error:
        raise ConfigError(f"no server lists its models at {url!r}: give --url and --model") from error
    return name


def _show(outcome: Outcome, options: argparse.Namespace, console: Console) -> None:
    console.print(report.tasks_table(outcome))
    if outcome.rows:
        console.print(report.stages_table(outcome))
    for line in report.notes(outcome):
        console.print(line, highlight=False)
    line = report.json_line(outcome, {"tasks": options.task, "url": options.url, "model": options.model})
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(line + "\n")
    print(line, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 if all is repaired, with the same outputs if compared; else 1; 2 if it can't run."""
    options = parse(arguments)
    console = Console(width=None if sys.stdout.isatty() else 150)
    warnings.filterwarnings("ignore", message="Cost calculation failed")  # for models of unknown cost
    try:
        chosen = tasks(options.task)
        with sandbox() as has_no_network:
            console.print(
                f"working in {ROOT}, {'without' if has_no_network else 'WITH'} network", highlight=False
            )
            if options.record:
                _record(chosen, options.record, console)
                return 0
            with _server(options, chosen, console) as url:
                outcome = drive(options, chosen, url, console)
    except ConfigError as error:
        console.print(str(error), markup=False)
        return 2
    _show(outcome, options, console)
    return 0 if outcome.are_all_repaired and outcome.are_outputs_identical is not False else 1


if __name__ == "__main__":
    sys.exit(main())
