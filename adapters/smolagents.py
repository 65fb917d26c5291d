"""smolagents: tag every call of a run with the current agent.

    instrument(workflow="research")
    CodeAgent(tools=[], model=OpenAIModel(...), name="writer", managed_agents=[...]).run("hi")

A hook notes the agent during each step of a run. The thread that runs a code agent's code, with its managed
agents and tools, inherits the note.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from functools import wraps
from typing import Any

from agentspec.adapters.frameworks import framework

with framework():
    from smolagents import MultiStepAgent, local_python_executor

from agentspec.adapters.allowed_hosts import Hosts
from agentspec.adapters.caller import made_up_session
from agentspec.adapters.hooks import Hooks, Undo, hinted, parts_by
from agentspec.adapters.replacement import replace_method

__all__ = ["instrument"]


def instrument(*, workflow: str | None = None, hosts: Hosts | None = None) -> Undo:
    """Tag the calls of every agent, existing ones included, until undone.

    The stage is the name of the agent, else that of the enclosing agent. The session is the outermost run.

    Args:
        workflow: prefix of every stage, e.g. ``research``.
        hosts: further servers that get tags, besides private ones and the gateway; see ``openai.instrument``.

    Returns:
        function that removes the instrumentation.

    Raises:
        StageError: ``workflow`` is malformed.
        ConfigError: ``hosts`` is malformed.
    """
    return _HOOKS.instrument(workflow, hosts)


class ContextKeepingExecutor(ThreadPoolExecutor):
    """A thread pool that runs each task in the context of its submitter."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Submit a task that runs in a copy of the current context."""
        return super().submit(copy_context().run, fn, *args, **kwargs)


def _put() -> Iterator[Undo]:
    yield replace_method(MultiStepAgent, "_run_stream", _noting)  # used by all runs
    yield replace_method(local_python_executor, "ThreadPoolExecutor", lambda original: ContextKeepingExecutor)


_HOOKS = Hooks(_put)


def _noting(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def run_stream(agent: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:
        caller = hinted(agent.name or "", session=made_up_session(), by="smolagents' agent name")
        return parts_by(caller, original(agent, *args, **kwargs))

    return run_stream
