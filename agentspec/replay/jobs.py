"""Distribution of files among processes. One process tokenizes a file and replays it for all methods."""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import islice
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from agentspec.errors import ConfigError
from agentspec.recorded.calls import Skipped
from agentspec.replay.calls import TEKKEN, Call, RecordedCall, encoded, load_tokenizer, read
from agentspec.replay.costs import ROW_COSTS, fitting_price
from agentspec.replay.methods import METHODS, Rule
from agentspec.replay.replay import replay
from agentspec.replay.tally import Tally

HALVES = ("first", "second")
REPORT_EVERY_S = 30.0  # where there is no terminal

Result = TypeVar("Result")
ByMethod = dict[str, dict[str, Tally]]  # method -> stage -> counts

_done: SimpleQueue[int] | None = None  # in a worker: the queue for numbers of finished calls


@dataclass(frozen=True, slots=True)
class Selection:
    """The calls of a file to replay, and their tokenizer.

    Attributes:
        tokenizer: ``"tekken"`` or a folder with a tokenizer.json.
        num_sessions: number of sessions that run concurrently.
        limit: maximum number of calls per file.
        half: 0 or 1 to replay one half only. Whole groups (tasks, databases) are in one half.
    """

    tokenizer: str = TEKKEN
    num_sessions: int = 1
    limit: int | None = None
    half: int | None = None

    def chosen(self, path: Path, skipped: Skipped | None = None) -> Iterable[RecordedCall]:
        """Return the calls of a file to replay.

        Args:
            skipped: counts records that are no calls, which are left out in any case.
        """
        skipped = Skipped() if skipped is None else skipped
        records = (
            record for record in read(path, skipped) if self.half is None or record.half() == self.half
        )
        return islice(records, self.limit)

    @property
    def part(self) -> str:
        """The part of a file in words, behind its name."""
        return "" if self.half is None else f" in its {HALVES[self.half]} half"

    def size(self, path: Path) -> int:
        """Return the number of calls to replay."""
        return sum(1 for _ in self.chosen(path))


@dataclass(frozen=True, slots=True)
class Plan:
    """The work to do for each file."""

    methods: tuple[str, ...]
    rule: Rule
    selection: Selection = Selection()

    def prices(self, method: str) -> dict[float, float]:
        """Return the least chance of a draft token by cost, where a method has to run again for it."""
        prices = {cost: fitting_price(cost) for cost in ROW_COSTS if METHODS[method].has_price}
        return {cost: price for cost, price in prices.items() if price != self.rule.min_prob}


@dataclass(frozen=True, slots=True)
class Replayed:
    """The results of one file.

    Attributes:
        num_calls: how many were replayed.
        at_costs: by cost of a verified token, the methods with a price at the price that fits it.
        skipped: records of the file that are no calls.
    """

    by_method: ByMethod
    num_calls: int = 0
    at_costs: Mapping[float, ByMethod] = field(default_factory=dict)
    skipped: Skipped = field(default_factory=Skipped)


def run(paths: Sequence[Path], plan: Plan, num_processes: int) -> dict[str, Replayed]:
    """Return counts by file name. Shows progress on stderr.

    Raises:
        ConfigError: a file is not a record of calls, or has none with a response.
        CheckpointError: the tokenizer can't be loaded.
    """
    load_tokenizer(plan.selection.tokenizer)
    sizes = {path: plan.selection.size(path) for path in paths}
    for path, size in sizes.items():
        if not size:
            raise no_calls(path, plan.selection)
        if not any(call.response for call in plan.selection.chosen(path)):
            raise ConfigError(f"no call in {str(path)!r}{plan.selection.part} has a response")
    num_calls = sum(sizes.values()) * sum(1 + len(plan.prices(name)) for name in plan.methods)
    replayed = share_out(_replay_file, [(path, plan) for path in paths], num_processes, num_calls)
    return {name_of(path): one for path, one in zip(paths, replayed, strict=True)}


def no_calls(path: Path, selection: Selection) -> ConfigError:
    """Return the error for a file without calls; it names the first records that are none."""
    skipped = Skipped()
    list(selection.chosen(path, skipped))
    return ConfigError("\n".join([f"there are no calls in {str(path)!r}{selection.part}", *skipped.reasons]))


def share_out(
    job: Callable[..., Result], arguments: Sequence[tuple[Any, ...]], num_processes: int, num_calls: int
) -> list[Result]:
    """Run the job on each tuple of arguments and return the results in order. Shows progress on stderr.

    Args:
        num_calls: total number of calls that the jobs replay.
    """
    context = multiprocessing.get_context("spawn")
    done: SimpleQueue[int] = context.SimpleQueue()
    with _progress() as progress:
        task = progress.add_task("calls", total=num_calls)
        watch = _watch if progress.console.is_interactive else _report
        watcher = threading.Thread(target=watch, args=(done, progress, task), daemon=True)
        watcher.start()
        with ProcessPoolExecutor(num_processes, context, _join, (done,)) as processes:
            jobs = [processes.submit(job, *given) for given in arguments]
            try:
                results = [one.result() for one in jobs]
            except BaseException:
                processes.shutdown(cancel_futures=True)
                raise
        done.put(0)
        watcher.join()
    return results


def name_of(path: Path) -> str:
    """Return the file's name in reports."""
    return path.name.removesuffix(".gz").removesuffix(".jsonl")


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(30),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left:"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )


def _watch(done: SimpleQueue[int], progress: Progress, task: TaskID) -> None:
    while num_ended := done.get():
        progress.advance(task, num_ended)


def _report(done: SimpleQueue[int], progress: Progress, task: TaskID) -> None:
    """Watch where there is no terminal for a bar: a line now and then."""
    begin_s = reported_s = time.monotonic()
    num_done, num_calls = 0, int(progress.tasks[0].total or 0)
    while num_ended := done.get():
        num_done += num_ended
        progress.advance(task, num_ended)
        now_s = time.monotonic()
        if now_s >= reported_s + REPORT_EVERY_S:
            reported_s = now_s
            left_min = (now_s - begin_s) / num_done * (num_calls - num_done) / 60
            progress.console.print(f"{num_done:,} of {num_calls:,} calls, {left_min:.0f} minutes left")


def _join(done: SimpleQueue[int]) -> None:
    global _done
    _done = done


def reporter() -> Callable[[int], None] | None:
    """Return a function that takes the number of finished calls, or None outside a worker."""
    return None if _done is None else _done.put


def _replay_file(path: Path, plan: Plan) -> Replayed:
    encode, selection = load_tokenizer(plan.selection.tokenizer), plan.selection
    skipped = Skipped()
    calls: list[Call] = [encoded(record, encode) for record in selection.chosen(path, skipped)]
    by_method = {
        name: replay(calls, METHODS[name].make(plan.rule), selection.num_sessions, reporter())
        for name in plan.methods
    }
    at_costs: dict[float, ByMethod] = {cost: {} for cost in ROW_COSTS}
    for name in plan.methods:
        for cost, price in plan.prices(name).items():
            drafter = METHODS[name].make(replace(plan.rule, min_prob=price))
            at_costs[cost][name] = replay(calls, drafter, selection.num_sessions, reporter())
    return Replayed(by_method, len(calls), at_costs, skipped)
