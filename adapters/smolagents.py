"""smolagents: tag every call of a run with the current agent.

    instrument(workflow="research")
    CodeAgent(tools=[], model=OpenAIModel(...), name="writer", managed_agents=[...]).run("hi")

A hook notes the agent during each step of a run. The thread that runs a code agent's code, with its managed
agents and tools, inherits the note.

The stage is the name of the agent, else that of the enclosing agent. The session is the outermost run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

from agentspec.adapters.instrumentation import Instrumentation, Undo, framework, replace_method

with framework():
    from smolagents import MultiStepAgent

from agentspec.adapters.caller import made_up_session
from agentspec.adapters.hooks import hinted, kept_for
from agentspec.adapters.openai import CLIENT

__all__ = ["instrument"]


def _changes() -> Iterator[Undo]:
    yield replace_method(MultiStepAgent, "_run_stream", _noting)  # used by all runs


instrument = Instrumentation(_changes, beneath=CLIENT).instrument


def _noting(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def run_stream(agent: Any, *args: Any, **kwargs: Any) -> Any:
        caller = hinted(agent.name or "", session=made_up_session(), by="smolagents' agent name")
        return kept_for(caller, original(agent, *args, **kwargs))

    return run_stream
