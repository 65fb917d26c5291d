"""AG2: tag every call with its agent's name, for single agents, sub-agents and networks.

    instrument(workflow="newsroom")
    await Agent("writer", config=OpenAIConfig(...)).ask("Bees.")

The hook notes the agent around each turn, and AG2's tasks and threads inherit the note. The ``autogen``
package of AG2 Classic is not supported.

The stage is the agent's name, or ``<name>/subtask`` for the subtasks that it creates. The session is the
conversation: the channel of a network, else the stream of the outermost agent.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import wraps
from typing import Any

from agentspec.adapters.instrumentation import Instrumentation, Undo, framework, replace_method

with framework():
    from ag2 import Agent
    from ag2.network import CHANNEL_DEP

from agentspec.adapters.caller import Caller, calling
from agentspec.adapters.hooks import below, hinted
from agentspec.adapters.openai import CLIENT

__all__ = ["instrument"]

_SUBTASK = re.compile(r"subtask-[0-9a-f]{8}")  # name of an agent that another agent creates for a task


def _changes() -> Iterator[Undo]:
    yield replace_method(Agent, "_turn_scope", _noting_turns)


instrument = Instrumentation(_changes, beneath=CLIENT).instrument


def _noting_turns(original: Callable[..., Any]) -> Callable[..., Any]:
    """Note the agent while its turn is driven: after the scope is entered, possibly in another task."""

    @asynccontextmanager
    @wraps(original)
    async def turn_scope(agent: Agent[Any], *args: Any, context: Any, **kwargs: Any) -> AsyncIterator[Any]:
        async with original(agent, *args, context=context, **kwargs) as drive:

            async def noted() -> Any:
                with calling(_caller(agent, context)):
                    return await drive()

            yield noted

    return turn_scope


def _caller(agent: Agent[Any], context: Any) -> Caller:
    channel = context.dependencies.get(CHANNEL_DEP)
    session = str(context.stream.id if channel is None else channel.channel_id)
    if _SUBTASK.fullmatch(agent.name):
        return below("subtask", session=session, by="AG2's subtask")
    return hinted(agent.name, session=session, by="AG2's agent name")
