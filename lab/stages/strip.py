"""``python -m lab.stages.strip``: stage discovery behind a proxy that strips the tags.

    strip --to http://127.0.0.1:8000 -- python -m examples.agentic_sql --no-compare --base-url {url}

This puts a proxy in front of a running gateway, and runs the command with the proxy's URL in place of
``{url}``. It compares the stages that the command sent with those that the gateway found by fingerprint.
"""

from __future__ import annotations

import argparse
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import uvicorn
from rich.table import Table

from agentspec.commands import option_types
from agentspec.reporting.report import Outputs, Report
from lab.stages.report import LEAST_ARI
from lab.stages.stripper import Findings, stripping

HOST = "127.0.0.1"
PLACE = "{url}"
START_LIMIT_S = 30.0


@contextmanager
def running(to: str, port: int, findings: Findings) -> Iterator[str]:
    """Run a proxy in front of the gateway at ``to``; yield the proxy's base URL."""
    app = stripping(to.rstrip("/").removesuffix("/v1"), findings)
    server = uvicorn.Server(uvicorn.Config(app, lifespan="on", log_level="warning", access_log=False))
    with socket.create_server((HOST, port)) as listening:
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        try:
            yield f"http://{HOST}:{listening.getsockname()[1]}/v1"  # connections wait until it is ready
        finally:
            server.should_exit = True
            thread.join()


def table(findings: Findings) -> Table:
    """Return a table of one row."""
    summary = findings.summary()
    result = Table(title="Stages found behind a proxy that strips the tags", title_justify="left")
    for name in ("calls", "stages told", "found", "by fingerprint", "ARI"):
        result.add_column(name, justify="right")
    ari = summary["ari"]
    result.add_row(
        str(summary["num_calls"]),
        str(summary["num_stages"]),
        str(summary["num_found"]),
        f"{summary['share_by_fingerprint']:.0%}",
        "-" if ari is None else f"{ari:.3f}",
    )
    return result


def notes(findings: Findings) -> list[str]:
    """Return the lines below the table."""
    summary = findings.summary()
    lines = [
        "found: stages as they were served, the shared one of the first calls included",
        f"at least {LEAST_ARI}: {'pass' if (summary['ari'] or 0) >= LEAST_ARI else 'FAIL'}",
    ]
    if summary["num_without_stage"]:
        lines.append(f"{summary['num_without_stage']} calls told no stage and do not count")
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the exit status: the command's if it failed, 1 if the index is too low, else 0."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    options, command = _parse(given)
    outputs = Outputs(json=options.json)
    outputs.check()
    findings = Findings()
    status = 0
    with running(options.to, options.port, findings) as url:
        if command:
            status = subprocess.run([one.replace(PLACE, url) for one in command], check=False).returncode
        else:
            print(f"stripping on {url}; Ctrl-C ends it and tells what was found", file=sys.stderr)
            with suppress(KeyboardInterrupt):
                threading.Event().wait()
    summary = findings.summary()
    report = Report(
        figures={"summary": summary},
        table=table(findings),
        origin={"arguments": {"command": command}},
        notes=notes(findings),
        is_failure=(summary["ari"] or 0) < LEAST_ARI,
    )
    missed = report.publish(outputs)
    return status or missed


def _parse(given: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """Split the arguments into options and the command after ``--``."""
    end = given.index("--") if "--" in given else len(given)
    parser = argparse.ArgumentParser(
        prog="python -m lab.stages.strip",
        usage="%(prog)s --to URL [options] [-- COMMAND with {url}]",
        description="A proxy before a gateway that strips all tags: does the gateway find the stages?",
    )
    parser.add_argument("--to", required=True, metavar="URL", help="the gateway")
    parser.add_argument(
        "--port", type=option_types.port, default=0, metavar="N", help="of the proxy (default: any free one)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the JSON line here")
    return parser.parse_args(given[:end]), given[end + 1 :]


if __name__ == "__main__":
    sys.exit(main())
