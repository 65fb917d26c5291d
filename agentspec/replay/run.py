"""``agentspec replay``: run recorded calls through the methods, and report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from agentspec.errors import ConfigError
from agentspec.replay import advice, jobs, report
from agentspec.replay.jobs import Plan
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
    paths = input_files(inputs)
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
        origin=origin(paths, {"methods": plan.methods, "rule": asdict(plan.rule), **asdict(plan.selection)}),
        notes=[
            *(text for name, one in replayed.items() for text in one.skipped.lines(name)),
            *(text for name, one in advised.items() for text in advice.lines(name, one)),
        ],
        is_for_terminals=True,
        plot=plot,
        markdown=lambda: report.markdown(results, advised),
    ).publish(outputs)


def origin(paths: Sequence[Path], arguments: Mapping[str, Any]) -> dict[str, object]:
    """Return the provenance of a replay's figures: files and arguments."""
    return {"arguments": {"inputs": [path.name for path in paths], **arguments}}


def input_files(inputs: Sequence[Path]) -> list[Path]:
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
