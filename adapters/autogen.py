"""AutoGen: tag every call of a team, a single agent or an autogen-core agent with the agent's name.

    instrument(workflow="newsroom")
    await RoundRobinGroupChat([researcher, writer], max_turns=2).run(task="Bees.")

In a team the hook notes the agent when the runtime delivers a message to it, elsewhere when the agent runs.

The stage is the agent's name. Calls that choose the next speaker have the name of the team's manager. The
session is the conversation of the outermost team, or the run of a single agent.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from agentspec.adapters.instrumentation import Instrumentation, Undo, framework

with framework():
    from autogen_agentchat.agents import AssistantAgent, BaseChatAgent
    from autogen_core import BaseAgent

from agentspec.adapters.caller import Caller, made_up_session
from agentspec.adapters.hooks import hinted, note_caller
from agentspec.adapters.openai import CLIENT

__all__ = ["instrument"]

_ONLY_KEY = "default"  # key of a singleton agent


def _changes() -> Iterator[Undo]:
    yield note_caller(BaseAgent, "on_message", _receiver)
    for name in ("run", "run_stream"):
        yield note_caller(BaseChatAgent, name, _agent)
    yield note_caller(AssistantAgent, "on_messages_stream", _agent)


instrument = Instrumentation(_changes, beneath=CLIENT).instrument


def _receiver(agent: BaseAgent, *args: Any, **kwargs: Any) -> Caller:
    """Return the caller for an agent; in a team its type is name plus team id, and its key the team id."""
    session = None if agent.id.key == _ONLY_KEY else agent.id.key
    return hinted(agent.id.type, session=session, by="AutoGen's agent type")


def _agent(agent: BaseChatAgent, *args: Any, **kwargs: Any) -> Caller:
    return hinted(agent.name, session=made_up_session(), by="AutoGen's agent name")
