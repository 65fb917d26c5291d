"""CrewAI: tag every call of a crew, a flow or a single agent with the role of its agent.

    instrument(workflow="newsroom")
    Crew(agents=[...], tasks=[...]).kickoff()

Hooks on the methods that run agents, tasks, crews and flow steps note the role. CrewAI's threads inherit it.

The stage is the agent's role as written, so ``Expert in {topic}`` is one stage. Outside of agents it is the
flow's method. The session is the run of the outermost flow, crew or agent.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from agentspec.adapters.instrumentation import Instrumentation, Undo, framework

with framework():
    from crewai import Agent, Crew, Task
    from crewai.flow.flow_context import current_flow_id
    from crewai.flow.runtime import Flow

from agentspec.adapters.caller import Caller, made_up_session
from agentspec.adapters.hooks import hinted, note_caller
from agentspec.adapters.openai import CLIENT

__all__ = ["instrument"]


def _changes() -> Iterator[Undo]:
    for name in ("kickoff", "akickoff"):
        yield note_caller(Crew, name, _crew)
    for name in ("_execute_core", "_aexecute_core"):
        yield note_caller(Task, name, _task)
    for name in ("execute_task", "aexecute_task", "kickoff", "kickoff_async"):
        yield note_caller(Agent, name, _agent)
    yield note_caller(Flow, "_execute_method", _step)


instrument = Instrumentation(_changes, beneath=CLIENT).instrument


def _crew(crew: Crew, *args: Any, **kwargs: Any) -> Caller:
    return hinted(session=_run())


def _task(task: Task, agent: Any, *args: Any, **kwargs: Any) -> Caller:
    """Return the caller for a task, which calls its guardrails and output conversion outside the agent."""
    return _agent(agent or task.agent)


def _agent(agent: Any, *args: Any, **kwargs: Any) -> Caller:
    role = getattr(agent, "_original_role", None) or getattr(agent, "role", None) or ""
    return hinted(role, session=_run(), by="CrewAI's role")


def _step(flow: Flow[Any], method_name: str, *args: Any, **kwargs: Any) -> Caller:
    """Return the caller for a flow step; CrewAI's own flows (memory, agent loop) add no role."""
    is_own = type(flow).__module__.startswith("crewai.")
    return hinted(*(() if is_own else (method_name,)), session=_run(), by="CrewAI's flow method")


def _run() -> str:
    """Return the id of the enclosing flow, else that of the run around this process, else a new one."""
    return current_flow_id.get() or made_up_session()
