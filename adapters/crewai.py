"""CrewAI: tag every call of a crew, a flow or a single agent with the role of its agent.

    instrument(workflow="newsroom")
    Crew(agents=[...], tasks=[...]).kickoff()

Hooks on the methods that run agents, tasks, crews and flow steps note the role. CrewAI's threads inherit it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from agentspec.adapters.frameworks import framework

with framework():
    from crewai import Agent, Crew, Task
    from crewai.flow.flow_context import current_flow_id
    from crewai.flow.runtime import Flow

from agentspec.adapters.allowed_hosts import Hosts
from agentspec.adapters.caller import Caller, made_up_session
from agentspec.adapters.hooks import Hooks, Undo, hinted, note_caller

__all__ = ["instrument"]


def instrument(*, workflow: str | None = None, hosts: Hosts | None = None) -> Undo:
    """Tag the calls of every agent, existing ones included, until undone.

    The stage is the agent's role as written, so ``Expert in {topic}`` is one stage. Outside of agents it is
    the flow's method. The session is the run of the outermost flow, crew or agent.

    Args:
        workflow: prefix of every stage, e.g. ``newsroom``.
        hosts: further servers that get tags, besides private ones and the gateway; see ``openai.instrument``.

    Returns:
        function that removes the instrumentation.

    Raises:
        StageError: ``workflow`` is malformed.
        ConfigError: ``hosts`` is malformed.
    """
    return _HOOKS.instrument(workflow, hosts)


def _put() -> Iterator[Undo]:
    for name in ("kickoff", "akickoff"):
        yield note_caller(Crew, name, _crew)
    for name in ("_execute_core", "_aexecute_core"):
        yield note_caller(Task, name, _task)
    for name in ("execute_task", "aexecute_task", "kickoff", "kickoff_async"):
        yield note_caller(Agent, name, _agent)
    yield note_caller(Flow, "_execute_method", _step)


_HOOKS = Hooks(_put)


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
