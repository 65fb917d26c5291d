"""PydanticAI: every call of a run tagged with the agent that is at work.

    instrument(workflow="support")
    Agent(model, name="triage").run_sync("hi")

What wraps a run notes its agent; as with all that a capability sets there, PydanticAI carries it to the run's
requests, tools and output functions, whatever task they are in, and takes it back at the end.
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
    """Tag the calls of every agent, also of those that exist, until it is undone.

    The stage is the name of the agent, wherever it runs; the session the conversation of the outermost run.

    Args:
        workflow: what goes before every stage, e.g. ``support``.
        hosts: servers that get tags besides private ones and the gateway, as in ``openai.instrument``.

    Returns:
        what undoes it.

    Raises:
        StageError: ``workflow`` is malformed.
        ConfigError: ``hosts`` is.
    """
    return _HOOKS.instrument(workflow, hosts)


def _put() -> Iterator[Undo]:
    yield note_caller(CombinedCapability, "wrap_run", _run)  # the root of every run's capabilities is one


_HOOKS = Hooks(_put)


def _run(capability: Any, ctx: RunContext[Any], **kwargs: Any) -> Caller:
    name = (ctx.agent and ctx.agent.name) or ""
    return hinted(name, session=ctx.conversation_id, by="PydanticAI's agent name")
