"""``agentspec replay``: run recorded calls through the methods, or run the comparison, and report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from agentspec.errors import ConfigError
from agentspec.replay import advice, jobs, report
from agentspec.replay.comparison import compare, trials
from agentspec.replay.comparison import report as compare_report
from agentspec.replay.jobs import HALVES, Plan, Selection
from agentspec.replay.methods import METHODS
from agentspec.replay.tally import total
from agentspec.reporting.report import Outputs, Report

ALL_FILES = "all files"
SUFFIXES = (".jsonl", ".jsonl.gz")


def run(inputs: Sequence[Path], plan: Plan, num_processes: int, outputs: Outputs) -> int:
    """Replay, print the table and the advice, write the files, and return the exit status.

    Raises:
        ConfigError: there are no calls, a file can't be read or written, a setting is out of range, or a peer
            is not installed.
    """
    paths = _paths(inputs)
    outputs.check(paths)
    _ = plan.rule.draft  # checks the settings
    for method in plan.methods:  # a peer may not be installed
        METHODS[method].make(plan.rule)
    replayed = jobs.run(paths, plan, num_processes)
    results = {name: one.by_method for name, one in replayed.items()}
    advised = {name: advice.advise(one, plan.rule) for name, one in replayed.items()}
    if len(paths) > 1:
        advised[ALL_FILES] = advice.advise(advice.together(replayed), plan.rule)
    summary = {
        f"{name}/{method}": total(by_stage.values()).tokens_per_step
        for name, by_method in results.items()
        for method, by_stage in by_method.items()
    }

    def plot(path: Path) -> None:
        from agentspec.replay.plot import plot

        plot(results, path)

    return Report(
        figures={
            "summary": {"tokens_per_step": summary},
            "figures": report.figures(results),
            "left_out": {name: asdict(one.skipped) for name, one in replayed.items()},
            "advice": {name: advice.figures(one) for name, one in advised.items()},
        },
        table=report.table(replayed),
        origin=_origin(paths, {"methods": plan.methods, "rule": asdict(plan.rule), **asdict(plan.selection)}),
        notes=[
            *(text for name, one in replayed.items() for text in one.skipped.lines(name)),
            *(text for name, one in advised.items() for text in advice.lines(name, one)),
        ],
        is_for_terminals=True,
        plot=plot,
        markdown=lambda: report.markdown(results, advised),
    ).publish(outputs)


def run_compare(
    inputs: Sequence[Path],
    selection: Selection,
    halves: Sequence[str],
    num_processes: int,
    outputs: Outputs,
) -> int:
    """Compare the learned rule with the paper's, print the table, write the files, return the exit status.

    The JSON's ``summary`` and the plot are those of the last half. Its ``figures`` are by half and data set.

    Raises:
        ConfigError: a file has no calls in one of the halves, or for the reasons of :func:`run`.
    """
    paths = _paths(inputs)
    outputs.check(paths)
    jobs.load_tokenizer(selection.tokenizer)
    measured = _measured(paths, {half: _of_half(selection, half) for half in halves}, num_processes)
    summaries = {half: compare.summary(figures) for half, figures in measured.items()}
    arguments = {**asdict(selection), "half": list(halves)}

    def plot(path: Path) -> None:
        from agentspec.replay.comparison.plot import plot

        plot(measured[halves[-1]], path)

    return Report(
        figures={"summary": summaries[halves[-1]], "summary_by_half": summaries, "figures": measured},
        table=compare_report.table(measured),
        is_for_terminals=True,
        origin=_origin(paths, arguments),
        plot=plot,
        markdown=lambda: compare_report.markdown(measured),
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


def _of_half(selection: Selection, half: str) -> Selection:
    return replace(selection, half=HALVES.index(half))


def _origin(paths: Sequence[Path], arguments: Mapping[str, Any]) -> dict[str, object]:
    return {"arguments": {"inputs": [path.name for path in paths], **arguments}}


def _paths(inputs: Sequence[Path]) -> list[Path]:
    """Return the files of all inputs. Each must have a unique name in the reports."""
    paths = [path for given in inputs for path in _files(given)]
    first: dict[str, Path] = {}
    for path in paths:
        if (other := first.setdefault(jobs.name_of(path), path)) is not path:
            raise ConfigError(
                f"{str(other)!r} and {str(path)!r} would both be {jobs.name_of(path)!r} in the report: "
                "rename one, or replay them one after the other"
            )
    return paths


def _files(given: Path) -> list[Path]:
    """Return a file, or the files of a folder that may be recorded calls, sorted by name."""
    if not given.is_dir():
        if not given.is_file():
            raise ConfigError(f"there is no file {str(given)!r}")
        return [given]
    found = sorted(path for path in given.iterdir() if path.name.endswith(SUFFIXES))
    if not found:
        raise ConfigError(f"no recorded calls (*.jsonl, *.jsonl.gz) in {str(given)!r}")
    return found
