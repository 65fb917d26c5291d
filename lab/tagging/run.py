"""Processor time that tagging adds to a call: a request's headers, and one level of caller.

No request is sent. A request of the ``openai`` client is built with a caller of three levels and without one.
A method is called with an adapter's hook and without it. The minimum of many rounds counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from uuid import uuid4

import openai
from openai._models import FinalRequestOptions
from rich.table import Table

from agentspec.adapters.caller import calling
from agentspec.adapters.hooks import hinted, note_caller
from agentspec.adapters.openai import instrument
from agentspec.reporting.report import Announce, Report, verdict

NUM_ROUNDS = 30
NUM_CALLS = 500
BAR_US = 100.0
ROLE = ("editorial-office", "Senior Researcher", "find_sources")


class Agent:
    """A framework's agent, with a method that a hook may wrap."""

    def ask(self) -> None:
        """Do nothing."""


def make_report(announce: Announce) -> Report:
    """Measure, and return the report, a failure if a call of three levels exceeds the bar."""
    announce(f"{NUM_ROUNDS} rounds of {NUM_CALLS} calls")
    figures = measure()
    passes = figures["call_of_three_levels"] < BAR_US
    table = Table(title="microseconds of processor time for a call", title_justify="left")
    for heading in ("", "us", "bar", ""):
        table.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    for name, value in figures.items():
        has_bar = name == "call_of_three_levels"
        table.add_row(
            name, f"{value:.1f}", f"< {BAR_US:g}" if has_bar else "", verdict(passes) if has_bar else ""
        )
    return Report(
        figures={"benchmark": "tagging", "us": figures, "bar_us": BAR_US},
        table=table,
        origin={"rounds": NUM_ROUNDS, "calls": NUM_CALLS},
        is_failure=not passes,
    )


def measure() -> dict[str, float]:
    """Return microseconds of processor time."""
    with openai.OpenAI(base_url="http://127.0.0.1:9/v1", api_key="none") as client:
        options = FinalRequestOptions.construct(method="post", url="/chat/completions", json_data={"n": 1})
        agent = Agent()

        def build() -> None:
            client._build_request(options)

        plain_request, plain_ask = _least_us(build), _least_us(agent.ask)
        undoing = [
            instrument(workflow="newsroom"),
            note_caller(Agent, "ask", lambda agent: hinted(ROLE[1], session=uuid4().hex)),
        ]
        with calling(hinted(*ROLE, session=uuid4().hex)):
            headers = _least_us(build) - plain_request
            level = _least_us(agent.ask) - plain_ask
        for undo in undoing:
            undo()
    return {
        "request_untagged": plain_request,
        "headers": headers,
        "level": level,
        "call_of_three_levels": headers + len(ROLE) * level,
    }


def _least_us(action: Callable[[], None]) -> float:
    rounds = []
    for _ in range(NUM_ROUNDS):
        began_ns = time.process_time_ns()
        for _ in range(NUM_CALLS):
            action()
        rounds.append(time.process_time_ns() - began_ns)
    return min(rounds) / NUM_CALLS / 1000
