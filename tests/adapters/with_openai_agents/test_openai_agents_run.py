"""``agentspec run`` before a program with OpenAI's Agents SDK, whose traces must not leave the machine."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from tests.adapters.support.trap import trap
from tests.commands.support.running import run

PROGRAM = """
from agents import Agent, Runner, add_trace_processor, set_default_openai_api, trace
from agents.tracing import TracingProcessor, get_trace_provider

class Counting(TracingProcessor):
    names = []
    def on_trace_start(self, trace): self.names.append(trace.name)
    def on_trace_end(self, trace): pass
    def on_span_start(self, span): pass
    def on_span_end(self, span): pass
    def shutdown(self): pass
    def force_flush(self): pass

set_default_openai_api("chat_completions")
add_trace_processor(Counting())
with trace("both"):
    for name in ("triage", "writer"):
        Runner.run_sync(Agent(name=name, instructions="a secret prompt", model="scripted"), "hi")
get_trace_provider().force_flush()
print(Counting.names)
"""


@pytest.mark.parametrize(
    ("options", "variables"),
    [
        ([], {}),
        (["--key", "key-of-the-gateway"], {}),
        (["--key", "key-of-the-gateway"], {"OPENAI_API_KEY": "the-users-own"}),
        ([], {"OPENAI_AGENTS_DISABLE_TRACING": "0"}),
    ],
)
def test_traces_stay_here(url: str, engine: Any, options: list[str], variables: dict[str, str]) -> None:
    with trap() as caught:
        done = run(url, sys.executable, "-c", PROGRAM, options=options, **caught.environment, **variables)
    assert done.returncode == 0, done.stderr
    assert caught.asked == []
    assert done.stdout == "['both']\n"  # the program's own trace processors work
    assert [request.tags.stage.name for request in engine.requests] == ["triage", "writer"]
    assert len({request.tags.session for request in engine.requests}) == 1  # the trace's


def test_without_the_adapter_too(url: str, engine: Any) -> None:
    with trap() as caught:
        done = run(url, sys.executable, "-I", "-c", PROGRAM, **caught.environment)  # -I: no sitecustomize
    assert (done.returncode, caught.asked, done.stdout) == (0, [], "[]\n"), done.stderr


def test_who_has_a_key_of_their_own_keeps_their_traces(url: str, engine: Any) -> None:
    """The trap catches what the SDK exports."""
    with trap() as caught:
        own = {"OPENAI_API_KEY": "the-users-own"}
        done = run(url, sys.executable, "-c", PROGRAM, **caught.environment, **own)
    assert done.returncode == 0, done.stderr
    assert set(caught.asked) == {"CONNECT api.openai.com:443"}
