"""``agentspec top``: the gains from speculation on a running server, live in a terminal. See docs/ui.md."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import httpx
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from agentspec.commands import gateway_call
from agentspec.commands.run.figures import time_saved
from agentspec.errors import EngineError

SILENCE_S = 30.0  # the server sends figures every second
WIDTH_WITHOUT_TERMINAL = 132
BARS = "▁▂▃▄▅▆▇█"
NUM_BARS = 20  # of the last forty seconds
COLUMNS = ("tokens/step", "now", "3 min", "all", "req/s", "tok/s", "accepted", "saved", "time saved", "tree")
NARROW = ("now", "3 min", "all", "tok/s", "accepted", "saved")
WIDE_CHARS = 110
NOTHING = "-"
EXAMPLES = """\
examples:
  agentspec top                                        live, until Ctrl-C
  agentspec top --once                                 one table, as it also is where there is no terminal
  agentspec top --url https://gateway:8000 --key KEY   the key's tenant; all, with the operator's
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``agentspec top``."""
    parser.description = "What speculation brings on a server, by stage, live. The page /ui shows more."
    parser.epilog = EXAMPLES
    parser.set_defaults(run=run_top)
    gateway_call.add_options(parser)
    parser.add_argument("--once", action="store_true", help="print one table and end")


def run_top(args: argparse.Namespace) -> int:
    """Run ``agentspec top``. Raises EngineError when the server ends."""
    console = Console()
    feed = snapshots(args.url, args.key)
    if args.once or not console.is_terminal:
        if not console.is_terminal:
            console = Console(width=WIDTH_WITHOUT_TERMINAL)
        next(feed)  # rates are known from the second snapshot on
        console.print(view(next(feed), console.width))
        return 0
    try:
        with Live(console=console, auto_refresh=False) as live:
            for one in feed:
                live.update(view(one, console.width), refresh=True)
    except KeyboardInterrupt:  # the only way to end it
        pass
    return 0


def snapshots(url: str, key: str | None) -> Iterator[dict[str, Any]]:
    """Yield a tenant's figures, once a second.

    Raises:
        RequestError: the server refuses to send them.
        EngineError: there is no such server, or it has ended.
    """
    url, headers = gateway_call.own_url(url, "events"), gateway_call.key_header(key)
    try:
        with httpx.stream("GET", url, headers=headers, timeout=SILENCE_S, trust_env=False) as answer:
            _check(answer, url, key)
            for line in answer.iter_lines():
                if line.startswith("data: "):
                    yield json.loads(line.removeprefix("data: "))
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise gateway_call.no_answer(url, error) from None
    raise EngineError(f"{url} has ended: the server stops, or its keys changed")


def _check(answer: httpx.Response, url: str, key: str | None) -> None:
    """Raise RequestError or EngineError with the server's message if this is not a stream of figures."""
    if answer.is_success and answer.headers.get("content-type", "").startswith("text/event-stream"):
        return
    try:
        reason = json.loads(answer.read())["error"]["message"]
    except (ValueError, LookupError, TypeError):
        raise gateway_call.no_gateway(url, answer.status_code, "no figures") from None
    raise gateway_call.refusal(answer.status_code, reason, key)


def view(snapshot: Mapping[str, Any], width: int) -> Group:
    """Return a table of the stages with a line of totals. Narrow terminals get fewer columns."""
    columns = COLUMNS if width >= WIDE_CHARS else NARROW
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("stage", overflow="fold")
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    for stage in snapshot["stages"]:
        table.add_row(Text(_name(stage)), *map(_cells(stage).__getitem__, columns))
    total = snapshot["total"]
    table.add_section()
    table.add_row(Text("all", style="bold"), *map(_cells(total).__getitem__, columns))
    left = snapshot["num_stages_left_out"]
    more = f", {left} more stages" if left else ""
    running = Text(f"{total['num_running']} calls under way{more}")
    return Group(table, running)


def _name(stage: Mapping[str, Any]) -> str:
    """Return a stage's name. An operator's figures include its tenant."""
    return f"{stage['tenant']}: {stage['stage']}" if "tenant" in stage else str(stage["stage"])


def _cells(figures: Mapping[str, Any]) -> dict[str, str]:
    drafted = figures["num_draft_tokens"]
    return {
        "tokens/step": spark(figures["series"]).rjust(NUM_BARS),
        "now": _per_step(figures["accepted_per_step_now"]),
        "3 min": _per_step(figures["accepted_per_step_recent"]),
        "all": _per_step(figures["accepted_per_step"]),
        "req/s": f"{figures['requests_per_s']:.1f}",
        "tok/s": f"{figures['tokens_per_s']:.0f}",
        "accepted": f"{figures['acceptance_rate']:.0%}" if drafted else NOTHING,
        "saved": str(figures["num_accepted_tokens"]),
        "time saved": NOTHING if figures["saved_s"] is None else time_saved(figures["saved_s"]),
        "tree": f"{figures['tree_bytes'] / (1 << 20):.1f} MiB",
    }


def spark(series: Sequence[float | None]) -> str:
    """Return the last seconds as bars, scaled from 1 to their maximum; blank for seconds without a step."""
    last = series[-NUM_BARS:]
    most = max([2.0, *(value for value in last if value is not None)])
    step = (most - 1) / (len(BARS) - 1)
    return "".join(" " if value is None else BARS[round((value - 1) / step)] for value in last)


def _per_step(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.2f}"
