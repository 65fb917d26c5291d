"""PydanticAI: every call of a run tagged with the agent that is at work.

    instrument(workflow="support")
    Agent(model, name="triage").run_sync("hi")

Each run gets one capability more, which notes the agent before the run begins; PydanticAI carries that to the
run's requests, tools and output functions, whatever task they are in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

from pydantic_ai import Agent, RunContext
from pydantic_ai.capabilities import AbstractCapability

from agentspec.adapters.caller import calling
from agentspec.adapters.hooks import Hooks, Undo, hinted
from agentspec.adapters.replacement import replace_method

__all__ = ["instrument"]


def instrument(*, workflow: str | None = None) -> Undo:
    """Tag the calls of every agent, also of those that exist, until it is undone.

    The stage is the name of the agent; one that runs in a tool or an output function of another is below it.
    The session is the conversation of the outermost run.

    Args:
        workflow: what goes before every stage, e.g. ``support``.

    Returns:
        what undoes it.

    Raises:
        StageError: ``workflow`` is malformed.
    """
    return _HOOKS.instrument(workflow)


class NotedRun(AbstractCapability[Any]):  # type: ignore[misc]
    """Notes whose run it is; adds nothing to it."""

    _safe_at_runtime = True  # it has nothing that durable execution would have to know before

    async def wrap_run(self, ctx: RunContext[Any], *, handler: Callable[[], Any]) -> Any:
        """What is noted here holds until the run is over, its tools and nested runs included."""
        name = ctx.agent.name if ctx.agent else None
        with calling(hinted(session=ctx.conversation_id).inner(name)):
            return await handler()


def _put() -> Iterator[Undo]:
    yield replace_method(Agent, "iter", _noting)  # all ways to run an agent go through it


_HOOKS = Hooks(_put)


def _noting(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def iter_(agent: Any, *args: Any, capabilities: Any = None, **kwargs: Any) -> Any:
        return original(agent, *args, capabilities=[*(capabilities or ()), NotedRun()], **kwargs)

    return iter_
