"""Files shared out among processes; one process tokenizes a file and replays it for all methods."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import islice
from multiprocessing.queues import SimpleQueue
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from agentspec.benchmarks import traces
from agentspec.benchmarks.replay.calls import Call, Encode, RecordedCall, encoded, read
from agentspec.benchmarks.replay.methods import METHODS, Rule
from agentspec.benchmarks.replay.replay import replay
from agentspec.benchmarks.replay.tally import Tally

TEKKEN = "tekken"

ByMethod = dict[str, dict[str, Tally]]  # method -> stage -> counts

_done: SimpleQueue[int] | None = None  # in a worker: where calls that have ended are reported


@dataclass(frozen=True, slots=True)
class Plan:
    """What is done with each file.

    Attributes:
        tokenizer: ``"tekken"`` or a folder with a tokenizer.json.
        num_sessions: how many run at the same time.
        limit: calls of each file, at most.
        half: 0 or 1 for those of one half only, whole groups (tasks, databases) in either.
    """

    methods: tuple[str, ...]
    rule: Rule
    tokenizer: str = TEKKEN
    num_sessions: int = 1
    limit: int | None = None
    half: int | None = None

    def chosen(self, path: Path) -> Iterable[RecordedCall]:
        """The calls of a file that are replayed."""
        records = (record for record in read(path) if self.half is None or record.half() == self.half)
        return islice(records, self.limit)


def run(paths: Sequence[Path], plan: Plan, num_processes: int) -> dict[str, ByMethod]:
    """Counts by file name; progress is shown on stderr.

    Raises:
        ConfigError: a file is no record of calls, or the tokenizer can't be loaded.
    """
    context = multiprocessing.get_context("spawn")
    done: SimpleQueue[int] = context.SimpleQueue()
    total = len(plan.methods) * sum(sum(1 for _ in plan.chosen(path)) for path in paths)
    with _progress() as progress:
        task = progress.add_task("calls", total=total)
        watcher = threading.Thread(target=_watch, args=(done, progress, task), daemon=True)
        watcher.start()
        with ProcessPoolExecutor(num_processes, context, _join, (done,)) as processes:
            jobs = {path: processes.submit(_replay_file, path, plan) for path in paths}
            results = {path.name.split(".")[0]: job.result() for path, job in jobs.items()}
        done.put(0)
        watcher.join()
    return results


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(30),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
    )


def _watch(done: SimpleQueue[int], progress: Progress, task: TaskID) -> None:
    while num_ended := done.get():
        progress.advance(task, num_ended)


def _join(done: SimpleQueue[int]) -> None:
    global _done
    _done = done


def _replay_file(path: Path, plan: Plan) -> ByMethod:
    encode = load_tokenizer(plan.tokenizer)
    calls: list[Call] = [encoded(record, encode) for record in plan.chosen(path)]
    report = None if _done is None else _done.put
    return {
        name: replay(calls, METHODS[name].make(plan.rule), plan.num_sessions, report) for name in plan.methods
    }


def load_tokenizer(name: str) -> Encode:
    """Text to token ids, without special tokens.

    Raises:
        CheckpointError: the folder has no tokenizer.json that can be read.
    """
    if name == TEKKEN:
        return traces.tokenizer()
    from agentspec.engine.tokenizer import Tokenizer

    raw = Tokenizer.load(name).raw
    return lambda text: np.array(raw.encode(text, add_special_tokens=False).ids, np.int32)
