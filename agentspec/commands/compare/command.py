"""``agentspec compare``: runs a program without drafts and with them, in turn, and compares the runs."""

from __future__ import annotations

import argparse
import json
import secrets
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from agentspec.commands.compare.proxy import recording
from agentspec.commands.compare.report import Measured, compared_outputs, shown, summary
from agentspec.commands.gateway_call import Gateway
from agentspec.commands.option_types import count
from agentspec.commands.run.command import (
    NOT_FOUND,
    NOT_RUNNABLE,
    add_program_options,
    chosen_gateway,
    program_of,
    stage_figures,
)
from agentspec.commands.run.environment import Run, run_environment, session_for
from agentspec.commands.run.figures import gained, summed
from agentspec.commands.run.program import end_as, run_program
from agentspec.commands.run.report import missing_calls, origin_of, run_report
from agentspec.wire import LEARN_HEADER, MAX_DRAFT_HEADER

WITHOUT_DRAFTS = {MAX_DRAFT_HEADER: "0", LEARN_HEADER: "0"}
DESCRIPTION = """\
Run a program three times: without drafts, with drafts, and without drafts again. Print the wall times of
the runs, the times of their requests, and how many outputs are identical.

The runs without drafts teach the trees nothing (X-AgentSpec-Learn: 0). The run with drafts is the first of
this program that they learn from, so it saves what a first run saves. --rounds 2 adds a run with drafts,
which knows the outputs of the first, and another one without. In all runs the calls pass a proxy of this
command. What the program does besides its calls, it does in each run.
"""
EXAMPLES = """\
examples:
  agentspec compare -- python my_agents.py             before the gateway on 127.0.0.1:8000
  agentspec compare --serve -- python my_agents.py     before one of its own, with the bundled model
  agentspec compare --rounds 3 --json out.json -- pytest -q
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``agentspec compare``."""
    parser.description = DESCRIPTION
    parser.epilog = EXAMPLES
    parser.allow_abbrev = False
    parser.usage = "agentspec compare [options] -- COMMAND ..."
    parser.set_defaults(run=run_compare)
    parser.add_argument("--rounds", type=count, default=1, metavar="N", help="runs with drafts (%(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the comparison to this file")
    add_program_options(parser)


def run_compare(args: argparse.Namespace) -> int:
    """Run ``agentspec compare``; return 0, or the exit status of a run that failed."""
    command = program_of(args, "compare")
    kinds = [False, *[True, False] * args.rounds]
    runs: list[Measured] = []
    with chosen_gateway(args) as (gateway, _):
        for number, has_drafts in enumerate(kinds, 1):
            _say(f"run {number} of {len(kinds)}, {'with' if has_drafts else 'without'} drafts")
            status = _run(gateway, args.workflow, command, runs, has_drafts=has_drafts)
            if status:
                _say(f"this run ended with status {status}: nothing is compared")
                return end_as(status)
            if not runs[-1].num_answered:
                _say(missing_calls(gateway, [origin_of(gateway.root)] if runs[-1].calls else []))
                return 1
    with_drafts = next(run for run in runs if run.has_drafts)
    outputs = compared_outputs(runs[0].calls, with_drafts.calls)
    print(shown(runs, outputs), file=sys.stderr)
    if args.json is not None:
        _write(args.json, json.dumps(summary(runs, outputs), indent=2) + "\n")
    return 0


def _run(
    gateway: Gateway, workflow: str | None, command: Sequence[str], runs: list[Measured], *, has_drafts: bool
) -> int:
    """Run the program once, and append the measurements. Return the program's exit status."""
    run_id = f"run-{secrets.token_hex(8)}"
    before = stage_figures(gateway)
    headers = {} if has_drafts else WITHOUT_DRAFTS
    with recording(gateway.root, headers) as (root, calls), run_report() as report:
        run = Run(root, gateway.key, session_for(run_id), workflow, run_id, report.path)
        environment, _ = run_environment(run)
        began_s = time.perf_counter()
        try:
            status = run_program(command, environment, run_id)
        except OSError as error:
            _say(f"can't run {command[0]!r}: {error.strerror}")
            return NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_RUNNABLE
        wall_s = time.perf_counter() - began_s
    figures = summed(gained(before, stage_figures(gateway)))
    runs.append(Measured(has_drafts, wall_s, calls, figures))
    return status


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        _say(f"can't write {str(path)!r}: {error.strerror}")


def _say(line: str) -> None:
    print(f"agentspec compare: {line}", file=sys.stderr, flush=True)
