"""AG2: every call of an agent tagged with its name, alone, below another one, or in a network.

    instrument(workflow="newsroom")
    await Agent("writer", config=OpenAIConfig(...)).ask("Bees.")

What drives a turn of an agent notes it; AG2's tasks and threads inherit that. (For the ``autogen`` of AG2
Classic there is nothing here.)
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import wraps
from typing import Any

from agentspec.adapters.frameworks import framework

with framework():
    from ag2 import Agent
    from ag2.network import CHANNEL_DEP

from agentspec.adapters.allowed_hosts import Hosts
from agentspec.adapters.caller import Caller, calling
from agentspec.adapters.hooks import Hooks, Undo, below, hinted
from agentspec.adapters.replacement import replace_method

__all__ = ["instrument"]

_SUBTASK = re.compile(r"subtask-[0-9a-f]{8}")  # the name that an agent gives to those it makes for a task


def instrument(*, workflow: str | None = None, hosts: Hosts | None = None) -> Undo:
    """Tag the calls of every agent, also of those that exist, until it is undone.

    The stage is the agent's name, of the subtasks that it makes ``<name>/subtask``. The session is the
    conversation: the channel of a network, else the stream of the outermost agent.

    Args:
        workflow: what goes before every stage, e.g. ``newsroom``.
        hosts: servers that get tags besides private ones and the gateway, as in ``openai.instrument``.

    Returns:
        what undoes it.

    Raises:
        StageError: ``workflow`` is malformed.
        ConfigError: ``hosts`` is.
    """
    return _HOOKS.instrument(workflow, hosts)


def _put() -> Iterator[Undo]:
    yield replace_method(Agent, "_turn_scope", _noting_turns)


_HOOKS = Hooks(_put)


def _noting_turns(original: Callable[..., Any]) -> Callable[..., Any]:
    """A turn is driven in its scope, once it is entered, maybe in a task of its own."""

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
