"""AutoGen: every call of a team, a lone agent or an agent of autogen-core tagged with the agent's name.

    instrument(workflow="newsroom")
    await RoundRobinGroupChat([researcher, writer], max_turns=2).run(task="Bees.")

In a team the agent is noted where its runtime hands it a message, elsewhere where it is run.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from agentspec.adapters.frameworks import framework

with framework():
    from autogen_agentchat.agents import AssistantAgent, BaseChatAgent
    from autogen_core import BaseAgent

from agentspec.adapters.allowed_hosts import Hosts
from agentspec.adapters.caller import Caller, made_up_session
from agentspec.adapters.hooks import Hooks, Undo, hinted, note_caller

__all__ = ["instrument"]

_ONLY_KEY = "default"  # of an agent that there is one of


def instrument(*, workflow: str | None = None, hosts: Hosts | None = None) -> Undo:
    """Tag the calls of every agent, also of those that exist, until it is undone.

    The stage is the agent's name; what chooses the next speaker has the name of the team's manager. The
    session is the conversation: of the outermost team, or the run of a lone agent.

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
    yield note_caller(BaseAgent, "on_message", _receiver)
    for name in ("run", "run_stream"):
        yield note_caller(BaseChatAgent, name, _agent)
    yield note_caller(AssistantAgent, "on_messages_stream", _agent)


_HOOKS = Hooks(_put)


def _receiver(agent: BaseAgent, *args: Any, **kwargs: Any) -> Caller:
    """Of what a team runs, the type is a name with the id of the team, and that is the key."""
    session = None if agent.id.key == _ONLY_KEY else agent.id.key
    return hinted(agent.id.type, session=session, by="AutoGen's agent type")


def _agent(agent: BaseChatAgent, *args: Any, **kwargs: Any) -> Caller:
    return hinted(agent.name, session=made_up_session(), by="AutoGen's agent name")
