"""LlamaIndex: tag every call of an agent, a workflow or a query engine with its stage.

    instrument(workflow="newsroom")
    await AgentWorkflow(agents=[researcher, writer], root_agent="researcher").run("Bees.")

A hook around workflow steps notes the agent or the step. Hooks on the parts of query engines note the part.
The caller of a stream is kept until the stream is read.

The stage is the agent's name. In other workflows it is the step, below that of the enclosing workflow. In a
query engine it is the path of its parts' classes. The session is the run of the outermost workflow, or the
query.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

from agentspec.adapters.instrumentation import Instrumentation, Undo, framework, replace_method

with framework():
    from llama_index.core.agent.workflow import AgentWorkflow
    from llama_index.core.agent.workflow.base_agent import BaseWorkflowAgent
    from llama_index.core.base.base_query_engine import BaseQueryEngine
    from llama_index.core.base.base_selector import BaseSelector
    from llama_index.core.base.response.schema import AsyncStreamingResponse, StreamingResponse
    from llama_index.core.response_synthesizers import BaseSynthesizer
    from workflows.runtime.types import step_function

from agentspec.adapters.caller import Caller, calling, made_up_session
from agentspec.adapters.hooks import below, hinted, kept_for, note_caller, noting
from agentspec.adapters.openai import CLIENT

__all__ = ["instrument"]


def _changes() -> Iterator[Undo]:
    yield replace_method(step_function, "partial", _noting_steps)
    for owner, name in (
        (BaseQueryEngine, "query"),
        (BaseQueryEngine, "aquery"),
        (BaseSelector, "select"),
        (BaseSelector, "aselect"),
    ):
        yield note_caller(owner, name, _part)
    yield replace_method(BaseSynthesizer, "synthesize", _noting_answers)
    yield replace_method(BaseSynthesizer, "asynthesize", _noting_later_answers)


instrument = Instrumentation(_changes, beneath=CLIENT).instrument


def _noting_steps(original: Callable[..., Any]) -> Callable[..., Any]:
    """Note the caller when a bound step is called: in the event loop, or in a thread if it is a sync step."""

    @wraps(original)
    async def partial(*args: Any, func: Any, event: Any, context: Any, workflow: Any, **kwargs: Any) -> Any:
        step = await original(*args, func=func, event=event, context=context, workflow=workflow, **kwargs)
        agent = await _agent(workflow, event, context)
        session = workflow._runtime.get_internal_adapter(workflow).run_id
        if agent:
            caller = hinted(agent, session=session, by="LlamaIndex's agent name")
        else:
            caller = below(func.__name__, session=session, by="LlamaIndex's step")
        return noting(step, lambda: caller)

    return partial


async def _agent(workflow: Any, event: Any, context: Any) -> Any:
    """Return the name of the step's agent, if any; for a team's tools the context has it, not the event."""
    if isinstance(workflow, BaseWorkflowAgent):
        return workflow.name
    if not isinstance(workflow, AgentWorkflow):
        return None
    return getattr(event, "current_agent_name", None) or await context.store.get("current_agent_name", None)


def _part(part: Any, *args: Any, **kwargs: Any) -> Caller:
    return below(type(part).__name__, session=made_up_session(), by="LlamaIndex's class")


def _noting_answers(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def synthesize(part: Any, *args: Any, **kwargs: Any) -> Any:
        caller = _part(part)
        with calling(caller):
            return _kept(caller, original.__get__(part)(*args, **kwargs))

    return synthesize


def _noting_later_answers(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    async def asynthesize(part: Any, *args: Any, **kwargs: Any) -> Any:
        caller = _part(part)
        with calling(caller):
            return _kept(caller, await original.__get__(part)(*args, **kwargs))

    return asynthesize


def _kept(caller: Caller, answer: Any) -> Any:
    """Keep the caller for a stream, which calls the model only when it is read."""
    if isinstance(answer, StreamingResponse | AsyncStreamingResponse):
        answer.response_gen = kept_for(caller, answer.response_gen)
    return answer
