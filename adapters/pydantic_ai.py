"""PydanticAI: tag every call of a run with the current agent.

    instrument(workflow="support")
    Agent(model, name="triage").run_sync("hi")

A hook on the capability that wraps a run notes its agent. PydanticAI carries context variables set there to
the run's requests, tools and output functions in any task, and resets them at the end.

The stage is the name of the agent. The session is the conversation of the outermost run.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from agentspec.adapters.instrumentation import Instrumentation, Undo, framework

with framework():
    from pydantic_ai import RunContext
    from pydantic_ai.capabilities import CombinedCapability

from agentspec.adapters.caller import Caller
from agentspec.adapters.hooks import hinted, note_caller
from agentspec.adapters.openai import CLIENT

__all__ = ["instrument"]


def _changes() -> Iterator[Undo]:
    yield note_caller(CombinedCapability, "wrap_run", _run)  # the root of every run's capabilities


instrument = Instrumentation(_changes, beneath=CLIENT).instrument


def _run(capability: Any, ctx: RunContext[Any], **kwargs: Any) -> Caller:
    name = (ctx.agent and ctx.agent.name) or ""
    return hinted(name, session=ctx.conversation_id, by="PydanticAI's agent name")
