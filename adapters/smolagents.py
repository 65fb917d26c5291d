"""smolagents: every call of a run tagged with the agent that is at work.

    instrument(workflow="research")
    CodeAgent(tools=[], model=OpenAIModel(...), name="writer", managed_agents=[...]).run("hi")

Each step of a run is noted as its agent's; the thread in which a code agent's code runs, managed agents and
tools with it, takes that over.
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
    """Tag the calls of every agent, also of those that exist, until it is undone.

    The stage is the name of the agent, if it has one, else that of the one that it runs in. The session is
    the outermost run.

    Args:
        workflow: what goes before every stage, e.g. ``research``.
        hosts: servers that get tags besides private ones and the gateway, as in ``openai.instrument``.

    Returns:
        what undoes it.

    Raises:
        StageError: ``workflow`` is malformed.
        ConfigError: ``hosts`` is.
    """
    return _HOOKS.instrument(workflow, hosts)


class ContextKeepingExecutor(ThreadPoolExecutor):
    """What runs in its threads has the context of who submitted it."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """As the class above does."""
        return super().submit(copy_context().run, fn, *args, **kwargs)


def _put() -> Iterator[Undo]:
    yield replace_method(MultiStepAgent, "_run_stream", _noting)  # all runs go through it
    yield replace_method(local_python_executor, "ThreadPoolExecutor", lambda original: ContextKeepingExecutor)


_HOOKS = Hooks(_put)


def _noting(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def run_stream(agent: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:
        caller = hinted(agent.name or "", session=made_up_session(), by="smolagents' agent name")
        return parts_by(caller, original(agent, *args, **kwargs))

    return run_stream
