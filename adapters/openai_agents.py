"""The OpenAI Agents SDK: every call of a run tagged with the agent that is at work.

    instrument(workflow="support")
    Runner.run_sync(Agent(name="triage", ...), "hi")

A run notes its first agent, and every turn notes whose it is: with tracing and without.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any

from agentspec.adapters.frameworks import framework

with framework():
    from agents import Agent, get_current_trace
    from agents.agent import AgentBase
    from agents.run import AgentRunner
    from agents.tracing.traces import NoOpTrace

from agentspec.adapters.allowed_hosts import Hosts
from agentspec.adapters.caller import CALLER, Caller, calling, holding, made_up_session
from agentspec.adapters.hooks import Hooks, Undo, hinted
from agentspec.adapters.replacement import replace_method

__all__ = ["instrument"]

_AROUND: ContextVar[Caller | None] = ContextVar("agentspec_openai_agents_around", default=None)


def instrument(*, workflow: str | None = None, hosts: Hosts | None = None) -> Undo:
    """Tag the calls of every agent, also of those that exist, until it is undone.

    The stage is the name of the agent, after a hand-off of the next one, in a tool or a guardrail of the one
    that runs there. The session is the conversation, the SDK's session, the group or the trace around, else
    the outermost run.

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
    yield replace_method(AgentRunner, "run", _noting_run)
    yield replace_method(AgentRunner, "run_streamed", _noting_streamed_run)
    yield replace_method(AgentBase, "get_all_tools", _noting_turn)


_HOOKS = Hooks(_put)


def _noting_run(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    async def run(runner: Any, starting_agent: Any, *given: Any, **options: Any) -> Any:
        with _running(starting_agent, options):
            return await original(runner, starting_agent, *given, **options)

    return run


def _noting_streamed_run(original: Callable[..., Any]) -> Callable[..., Any]:
    """It begins a task, which takes over what is noted."""

    @wraps(original)
    def run_streamed(runner: Any, starting_agent: Any, *given: Any, **options: Any) -> Any:
        with _running(starting_agent, options):
            return original(runner, starting_agent, *given, **options)

    return run_streamed


def _noting_turn(original: Callable[..., Any]) -> Callable[..., Any]:
    """A turn asks its agent for its tools first, in the run's own context: what is noted there holds.

    The end of the run takes it back.
    """

    @wraps(original)
    async def get_all_tools(agent: Any, *args: Any, **kwargs: Any) -> Any:
        around = _AROUND.get()
        if around is not None:
            CALLER.set(_by(agent, around))
        return await original(agent, *args, **kwargs)

    return get_all_tools


@contextmanager
def _running(starting_agent: Agent[Any], options: Mapping[str, Any]) -> Iterator[None]:
    around = hinted(session=_session_of(options))
    with holding(_AROUND, around), calling(_by(starting_agent, around)):
        yield


def _by(agent: AgentBase[Any], around: Caller) -> Caller:
    with calling(around):
        return hinted(agent.name, by="the Agents SDK's agent name")


def _session_of(options: Mapping[str, Any]) -> str:
    """What the SDK groups a run by, else the trace around it; what has neither is its own."""
    config = options.get("run_config")
    group = config.get("group_id") if isinstance(config, dict) else getattr(config, "group_id", None)
    session = getattr(options.get("session"), "session_id", None)
    return str(options.get("conversation_id") or session or group or _trace_around() or made_up_session())


def _trace_around() -> str | None:
    """Several runs may be in one; where tracing is off, all have the same, which is none."""
    trace = get_current_trace()
    if trace is None or isinstance(trace, NoOpTrace):
        return None
    return str(getattr(trace, "group_id", None) or trace.trace_id)
