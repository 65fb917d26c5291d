"""``agentspec run``: runs any program with a gateway, tagged as far as its frameworks have adapters."""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agentspec.commands import gateway_call
from agentspec.commands.gateway_call import Gateway
from agentspec.commands.run.environment import Run, run_environment, session_for
from agentspec.commands.run.figures import gained, shown, summed
from agentspec.commands.run.program import end_as, run_program
from agentspec.commands.run.report import missing_calls, origin_of, run_report
from agentspec.errors import AgentSpecError, ConfigError, EngineError
from agentspec.stages import StageKey

NOT_FOUND, NOT_RUNNABLE = 127, 126  # as in shells
STOP_TIMEOUT_S = 20
READY = "serving "
REQUEST_TIME = "request time is a sum over all requests, parallel ones count each: it is no wall time"
DESCRIPTION = """\
Run a program and send its model calls to a gateway, each with its stage. At its end, print the saving.
Clients find the gateway in the environment. In Python, the frameworks that it imports are instrumented.
"""
EXAMPLES = """\
examples:
  agentspec run -- python my_agents.py                 before the gateway on 127.0.0.1:8000
  agentspec run --workflow agentic_sql -- pytest -q    stages agentic_sql/...
  agentspec run --url http://gpu-box:8000 --key KEY -- uvicorn app:app
  agentspec run --serve -- python my_agents.py         before one of its own, with the bundled model
  agentspec run --serve-options='--config agentspec.yaml' -- claude -p 'fix the tests'
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``agentspec run``."""
    parser.description = DESCRIPTION
    parser.epilog = EXAMPLES
    parser.allow_abbrev = False
    parser.usage = "agentspec run [options] -- COMMAND ..."
    parser.set_defaults(run=run_run)
    add_program_options(parser)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the saving to this file")


def add_program_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for the gateway and the program, which ``agentspec compare`` has as well."""
    gateway_call.add_options(parser)
    parser.add_argument("--workflow", metavar="NAME", help="prefix of every stage")
    parser.add_argument("--serve", action="store_true", help="start a gateway for this run, on a free port")
    parser.add_argument(
        "--serve-options", metavar="'...'", help="the same, with these options of agentspec serve"
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, help="the program and its arguments")


def run_run(args: argparse.Namespace) -> int:
    """Run ``agentspec run`` and return the program's exit status."""
    command = program_of(args, "run")
    with chosen_gateway(args) as (gateway, is_own):
        status = _run(gateway, args.workflow, command, args.json, is_own=is_own)
    return end_as(status)


def program_of(args: argparse.Namespace, name: str) -> list[str]:
    """Return the program and its arguments.

    Raises:
        argparse.ArgumentError: there is none.
        StageError: ``--workflow`` is malformed.
    """
    command: list[str] = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not command:
        raise argparse.ArgumentError(
            None, f"there is nothing to run: agentspec {name} [options] -- COMMAND ..."
        )
    if args.workflow is not None:
        StageKey.parse(args.workflow)
    return command


@contextmanager
def chosen_gateway(args: argparse.Namespace) -> Iterator[tuple[Gateway, bool]]:
    """Yield the gateway that the options name, and True if it was started for this block.

    Raises:
        ConfigError: ``--serve-options`` is malformed.
        EngineError: the gateway of ``--serve`` did not start.
    """
    if not args.serve and args.serve_options is None:
        yield Gateway.of(args), False
        return
    try:
        options = shlex.split(args.serve_options or "")
    except ValueError as error:
        raise ConfigError(f"--serve-options {args.serve_options!r}: {error}") from None
    with own_gateway(options) as url:
        yield Gateway(url, args.key), True


@contextmanager
def own_gateway(options: Sequence[str]) -> Iterator[str]:
    """Yield its root URL. Its messages appear on our standard error. EngineError if it does not start."""
    watchdog_end, our_end = os.pipe()
    try:
        process = subprocess.Popen(
            _serve_argv(options),
            stdin=watchdog_end,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
    except BaseException:
        os.close(our_end)
        raise
    finally:
        os.close(watchdog_end)
    with process:
        try:
            yield _root(process)
        finally:
            os.close(our_end)


def _serve_argv(options: Sequence[str]) -> list[str]:
    """Return the parent watchdog's command line. The terminal's signals do not reach its session."""
    from agentspec.gateway.engine_process.child_process import WATCHDOG

    serve = (sys.executable, "-m", "agentspec", "serve", "--port", "0", "--log-level", "warning", *options)
    return [sys.executable, "-I", str(WATCHDOG), str(STOP_TIMEOUT_S), *serve]


def _root(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line.startswith(READY):
        raise EngineError("the gateway that --serve asked for did not start; it said why above")
    return line.split()[-1].removesuffix("/v1")


def _run(
    gateway: Gateway, workflow: str | None, command: Sequence[str], json_file: Path | None, *, is_own: bool
) -> int:
    run_id = f"run-{secrets.token_hex(8)}"
    session = session_for(run_id)
    before = stage_figures(gateway)
    root = gateway.root
    with run_report() as report:
        run = Run(root, gateway.key, session, workflow, run_id, report.path)
        environment, replaced = run_environment(run)
        if replaced:
            _say(f"{', '.join(replaced)} had another value; the program's calls are sent to {root}")
        began_s = time.monotonic()
        try:
            status = run_program(command, environment, run_id)
        except OSError as error:
            _say(f"can't run {command[0]!r}: {error.strerror}")
            return NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_RUNNABLE
        origins = report.origins()
    seconds = time.monotonic() - began_s
    try:
        stages = gained(before, stage_figures(gateway))
    except AgentSpecError as error:
        _say(f"the saving is unknown: {error}")
        return status
    if stages:
        _say(_heading(root, seconds, is_own))
        print(shown(stages), file=sys.stderr)
        if summed(stages)["saved_request_s"] is not None:
            _say(REQUEST_TIME)
    if not stages or (origins and origin_of(root) not in origins):
        _say(missing_calls(gateway, origins))
    if json_file is not None:
        _write(json_file, run, stages, {"wall_s": seconds, "exit_status": status, "is_alone": is_own})
    return status


def stage_figures(gateway: Gateway) -> list[dict[str, Any]]:
    """Return the gateway's figures, by stage. Raises RequestError, or EngineError that names --serve too."""
    try:
        stages = gateway.stages().get("stages")
        if not isinstance(stages, list):
            raise gateway_call.no_gateway(gateway.url, 200, "no list of stages")
    except EngineError as error:
        raise EngineError(f"{error}\nOr let this command start a gateway: --serve") from None
    return stages


def _heading(root: str, seconds: float, is_own: bool) -> str:
    others = "" if is_own else "; calls of others in that time are among them"
    return f"calls to {root} in {seconds:.1f} s of wall time{others}"


def _write(path: Path, run: Run, stages: Sequence[Mapping[str, Any]], more: Mapping[str, Any]) -> None:
    report = {
        "url": run.root,
        "session": run.session,
        "workflow": run.workflow,
        **more,
        "stages": stages,
        "total": summed(stages),
    }
    try:
        path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        _say(f"can't write {str(path)!r}: {error.strerror}")


def _say(line: str) -> None:
    print(f"agentspec run: {line}", file=sys.stderr)
