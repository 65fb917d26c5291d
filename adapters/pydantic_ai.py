"""PydanticAI: tag every call of a run with the current agent.

    instrument(workflow="support")
    Agent(model, name="triage").run_sync("hi")

A hook on the capability that wraps a run notes its agent. PydanticAI carries context variables set there to
the run's requests, tools and output functions in any task, and resets them at the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from agentspec.adapters.frameworks import framework

with framework():
    from pydantic_ai import RunContext
    from pydantic_ai.capabilities import CombinedCapability

from agentspec.adapters.allowed_hosts import Hosts
from agentspec.adapters.caller import Caller
from agentspec.adapters.hooks import Hooks, Undo, hinted, note_caller

__all__ = ["instrument"]


def instrument(*, workflow: str | None = None, hosts: Hosts | None = None) -> Undo:
    """Tag the calls of every agent, existing ones included, until undone.

    The stage is the name of the agent. The session is the conversation of the outermost run.

    Args:
        workflow: prefix of every stage, e.g. ``support``.
        hosts: further servers that get tags, besides private ones and the gateway; see ``openai.instrument``.

    Returns:
        function that removes the instrumentation.

    Raises:
        StageError: ``workflow`` is malformed.
        ConfigError: ``hosts`` is malformed.
    """
    return _HOOKS.instrument(workflow, hosts)


def _put() -> Iterator[Undo]:
    yield note_caller(CombinedCapability, "wrap_run", _run)  # the root of every run's capabilities


_HOOKS = Hooks(_put)


def _run(capability: Any, ctx: RunContext[Any], **kwargs: Any) -> Caller:
    name = (ctx.agent and ctx.agent.name) or ""
    return hinted(name, session=ctx.conversation_id, by="PydanticAI's agent name")
