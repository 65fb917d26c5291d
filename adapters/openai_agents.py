"""The OpenAI Agents SDK: tag every call of a run with the current agent.

    instrument(workflow="support")
    Runner.run_sync(Agent(name="triage", ...), "hi")

Hooks note the first agent of a run and the agent of every turn, with or without tracing.

The stage is the name of the current agent: after a hand-off the next one, in a tool or guardrail the one that
runs there. The session is the conversation, the SDK's session, the group or the enclosing trace, else the
outermost run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial, wraps
from typing import Any

from agentspec.adapters.instrumentation import Instrumentation, Undo, framework, replace_method

with framework():
    from agents import Agent, get_current_trace, set_tracing_disabled
    from agents.agent import AgentBase
    from agents.run import AgentRunner
    from agents.tracing.processors import BackendSpanExporter
    from agents.tracing.traces import NoOpTrace

from agentspec.adapters.caller import CALLER, Caller, calling, holding, made_up_session
from agentspec.adapters.hooks import hinted
from agentspec.adapters.openai import CLIENT

__all__ = ["instrument"]

UNTRACED_VARIABLE = "AGENTSPEC_RUN_UNTRACED"  # set if `agentspec run` switched the SDK's tracing off
KEY_VARIABLE = "AGENTSPEC_RUN_KEY"  # the key that `agentspec run` put into the environment

_AROUND: ContextVar[Caller | None] = ContextVar("agentspec_openai_agents_around", default=None)


def _changes() -> Iterator[Undo]:
    if os.environ.get(UNTRACED_VARIABLE):
        yield from _traces_for_others()
    yield replace_method(AgentRunner, "run", _noting_run)
    yield replace_method(AgentRunner, "run_streamed", _noting_streamed_run)
    yield replace_method(AgentBase, "get_all_tools", _noting_turn)


instrument = Instrumentation(_changes, beneath=CLIENT).instrument


def _traces_for_others() -> Iterator[Undo]:
    """Switch on the tracing that ``agentspec run`` switched off, without its export to OpenAI.

    The SDK exports traces, prompts included, to OpenAI as soon as the environment has a key. The run's key is
    for the gateway. The program's own trace processors, and the sessions of traces, need the tracing.
    """
    for name in ("export", "_export_with_deadline"):
        if name in vars(BackendSpanExporter):
            yield replace_method(BackendSpanExporter, name, _exporting_by_own_key)
    set_tracing_disabled(False)
    yield partial(set_tracing_disabled, True)


def _exporting_by_own_key(original: Callable[..., None]) -> Callable[..., None]:
    @wraps(original)
    def export(exporter: Any, items: list[Any], *args: Any, **kwargs: Any) -> None:
        if exporter.api_key == os.environ.get(KEY_VARIABLE):
            items = [item for item in items if getattr(item, "tracing_api_key", None)]
        if items:
            original(exporter, items, *args, **kwargs)

    return export


def _noting_run(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    async def run(runner: Any, starting_agent: Any, *given: Any, **options: Any) -> Any:
        with _running(starting_agent, options):
            return await original(runner, starting_agent, *given, **options)

    return run


def _noting_streamed_run(original: Callable[..., Any]) -> Callable[..., Any]:
    """Note the first agent before the run starts its task, which inherits the note."""

    @wraps(original)
    def run_streamed(runner: Any, starting_agent: Any, *given: Any, **options: Any) -> Any:
        with _running(starting_agent, options):
            return original(runner, starting_agent, *given, **options)

    return run_streamed


def _noting_turn(original: Callable[..., Any]) -> Callable[..., Any]:
    """Note the agent when a turn lists the agent's tools, its first action in the run's own context.

    The end of the run removes the note.
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
    """Return the id by which the SDK groups a run, else that of the enclosing trace, else a made-up one."""
    config = options.get("run_config")
    group = config.get("group_id") if isinstance(config, dict) else getattr(config, "group_id", None)
    session = getattr(options.get("session"), "session_id", None)
    return str(options.get("conversation_id") or session or group or _trace_around() or made_up_session())


def _trace_around() -> str | None:
    """Return the id of the enclosing trace; None with tracing off, where all runs share a no-op trace."""
    trace = get_current_trace()
    if trace is None or isinstance(trace, NoOpTrace):
        return None
    return str(getattr(trace, "group_id", None) or trace.trace_id)
