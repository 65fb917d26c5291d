"""``agentspec replay``: recorded calls through every method, then the report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from agentspec.benchmarks.provenance import provenance
from agentspec.benchmarks.replay import jobs, report
from agentspec.benchmarks.replay.jobs import Plan
from agentspec.benchmarks.report import json_line, make_room_for, publish
from agentspec.errors import ConfigError

SUFFIXES = (".jsonl", ".jsonl.gz")


def run(
    inputs: Sequence[Path], plan: Plan, num_processes: int, json_path: Path | None, markdown_path: Path | None
) -> int:
    """Replay; print the table and, as the last line, the JSON; the exit status.

    Raises:
        ConfigError: there is nothing to replay, or it can't be read.
    """
    paths = [path for given in inputs for path in _files(given)]
    results = jobs.run(paths, plan, num_processes)
    summary = {
        f"{name}/{method}": report.total(by_stage.values()).tokens_per_step
        for name, by_method in results.items()
        for method, by_stage in by_method.items()
    }
    origin = {**provenance(), "arguments": {"inputs": [path.name for path in paths], **asdict(plan)}}
    line = json_line({"summary": {"tokens_per_step": summary}, "figures": report.figures(results)}, origin)
    make_room_for(json_path, markdown_path)
    if markdown_path:
        markdown_path.write_text(report.markdown(results), encoding="utf-8")
    publish(report.table(results), line, json_path)
    return 0


def _files(given: Path) -> list[Path]:
    """A file, or those of a folder that may be recorded calls, by name."""
    if not given.is_dir():
        if not given.is_file():
            raise ConfigError(f"there is no file {str(given)!r}")
        return [given]
    found = sorted(path for path in given.iterdir() if path.name.endswith(SUFFIXES))
    if not found:
        raise ConfigError(f"no recorded calls (*.jsonl, *.jsonl.gz) in {str(given)!r}")
    return found
