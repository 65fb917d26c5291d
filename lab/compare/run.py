"""Run every trial on every file, and report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from agentspec.errors import ConfigError
from agentspec.replay import jobs
from agentspec.replay.calls import load_tokenizer
from agentspec.replay.jobs import HALVES, Selection
from agentspec.replay.run import input_files, origin
from agentspec.reporting.report import Outputs, Report
from lab.compare import compare, report, trials


def run(
    inputs: Sequence[Path],
    selection: Selection,
    halves: Sequence[str],
    num_processes: int,
    outputs: Outputs,
) -> int:
    """Compare the learned rule with the paper's, print the table, write the files, return the exit status.

    The JSON's ``summary`` and the plot are those of the last half. Its ``figures`` are by half and data set.

    Raises:
        ConfigError: a file has no calls in one of the halves, or can't be read or written.
    """
    paths = input_files(inputs)
    outputs.check(paths)
    load_tokenizer(selection.tokenizer)
    measured = _measured(
        paths, {half: replace(selection, half=HALVES.index(half)) for half in halves}, num_processes
    )
    summaries = {half: compare.summary(figures) for half, figures in measured.items()}
    arguments = {**asdict(selection), "half": list(halves)}

    def plot(path: Path) -> None:
        from lab.compare.plot import plot

        plot(measured[halves[-1]], path)

    return Report(
        figures={"summary": summaries[halves[-1]], "summary_by_half": summaries, "figures": measured},
        table=report.table(measured),
        is_for_terminals=True,
        origin=origin(paths, arguments),
        plot=plot,
        markdown=lambda: report.markdown(measured),
    ).publish(outputs)


def _measured(
    paths: Sequence[Path], selections: Mapping[str, Selection], num_processes: int
) -> dict[str, compare.Figures]:
    """Run every trial on every file and return the figures by half.

    A file's trials are consecutive, so that few processes tokenize it.
    """
    arguments, num_calls = [], 0
    for half, selection in selections.items():
        for path in paths:
            if not (size := selection.size(path)):
                raise ConfigError(f"{path.name!r} has no calls in its {half} half: too few tasks or sessions")
            num_calls += size * len(trials.TRIALS)
            others = tuple(other for other in paths if other != path)
            arguments += [(trial, path, others, selection) for trial in trials.TRIALS]
    outcomes = iter(jobs.share_out(trials.run, arguments, num_processes, num_calls))
    return {
        half: {
            jobs.name_of(path): compare.figures({trial: next(outcomes) for trial in trials.TRIALS})
            for path in paths
        }
        for half in selections
    }
