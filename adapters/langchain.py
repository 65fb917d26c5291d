"""LangChain and LangGraph: tag every call of a graph with its stage, without changing the graph.

    model = ChatAgentSpec(model="agentspec-sql", base_url="http://127.0.0.1:8000/v1", api_key="none")

or, for existing models, before their first use:

    instrument(workflow="agentic_sql")

A callback handler notes the caller of a model in a context variable, and the model's request reads it.
``graph_roles`` derives the caller's names.
"""

from __future__ import annotations

import logging
import os
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial, wraps
from typing import Annotated, Any, Self
from uuid import UUID

from pydantic import AfterValidator, BaseModel, model_validator

from agentspec.adapters.instrumentation import (
    Instrumentation,
    Undo,
    framework,
    guards,
    replace_method,
    replacements,
)

with framework():
    from langchain_core.callbacks import AsyncCallbackManager, BaseCallbackHandler
    from langchain_core.runnables import Runnable, ensure_config
    from langchain_core.tracers.context import _configure_hooks, register_configure_hook
    from langchain_openai import ChatOpenAI, OpenAI
    from langchain_openai.chat_models.base import BaseChatOpenAI
    from langchain_openai.llms.base import BaseOpenAI

from agentspec.adapters.allowed_hosts import HOSTS, is_disabled
from agentspec.adapters.caller import CALLER, FINDERS, Caller, made_up_session
from agentspec.adapters.client_requests import log_tags, logger
from agentspec.adapters.graph_roles import (
    agent_of,
    is_agents_node,
    is_node_run,
    named_by,
    named_stage,
    nodes_of,
    role_of,
    thread_of,
)
from agentspec.adapters.headers import agentspec_headers, lacking

FIGURES_FIELD = "speculative_decoding"
MANY_NAMES = 1024  # number of run names in the cache
MAX_RUNS = 1 << 15  # evict the oldest beyond: LangChain reports no end of cancelled tools and streams


@dataclass(frozen=True, slots=True)
class LiveRun:
    """A running chain, graph, node or tool.

    Attributes:
        session: session of the outermost run.
        told_agent: the agent's name in the metadata, which inner runs inherit.
        is_agent: True if that name was introduced by this run.
        agent: path of the enclosing agent.
        num_outer: number of nodes around that agent.
        name: explicit name of this run, if it has one.
        run_name: ``name``, else that of the nearest enclosing run.
        tool: path of the enclosing tool, if there is no graph in between.
    """

    session: str
    told_agent: str | None = None
    is_agent: bool = False
    agent: tuple[str, ...] | None = None
    num_outer: int = 0
    name: str | None = None
    run_name: str | None = None
    tool: tuple[str, ...] | None = None


_DEFAULT_GRAPH_NAME = "LangGraph"
_CALLER: ContextVar[Caller | None] = ContextVar("agentspec_langchain_caller", default=None)


def _subclasses(of: type[Any]) -> Iterator[type[Any]]:
    one: type[Any]
    for one in of.__subclasses__():
        yield one
        yield from _subclasses(one)


@lru_cache(maxsize=MANY_NAMES)
def is_class_name(name: str) -> bool:
    """Return True for LangChain's default run names: ``RunnableSequence``, ``RunnableParallel<a>``."""
    plain = name.partition("<")[0]
    return plain == _DEFAULT_GRAPH_NAME or any(one.__name__ == plain for one in _subclasses(Runnable))


class Listener(BaseCallbackHandler):  # type: ignore[misc]
    """A handler that notes each call in its own context; inline, since a thread or task has another one."""

    run_inline = True

    def __init__(self) -> None:
        self._runs: OrderedDict[UUID, LiveRun] = OrderedDict()

    def on_chain_start(
        self,
        *started: Any,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        """Record the start of a graph, a node, a retriever, ..."""
        self._begin(run_id, self._run(run_id, parent_run_id, metadata or {}, tags or [], name))

    def on_tool_start(
        self,
        serialized: dict[str, Any] | None,
        *started: Any,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        """Record the start of a tool; an unnamed agent inside takes the tool's name."""
        metadata, tags = metadata or {}, tags or []
        name = (serialized or {}).get("name") or name
        run = self._run(run_id, parent_run_id, metadata, tags, name)
        if name:
            around = role_of(metadata, (), run.num_outer if run.agent else None, run.agent)
            run = replace(run, tool=(*around, name))
        self._begin(run_id, run)

    def _run(
        self,
        run_id: UUID,
        parent_run_id: UUID | None,
        metadata: Mapping[str, Any],
        tags: list[str],
        told_name: str | None,
    ) -> LiveRun:
        around = self._runs.get(parent_run_id) if parent_run_id else None
        around = around or LiveRun(made_up_session(str(parent_run_id or run_id)))
        nodes, told_agent = nodes_of(metadata), agent_of(metadata)
        is_node, is_agent = is_node_run(tags), told_agent not in (None, around.told_agent)
        agent, num_outer = around.agent, around.num_outer
        if told_agent != around.told_agent:
            agent, num_outer = (told_agent,) if told_agent else None, len(nodes)
        elif is_node and not around.is_agent and is_agents_node(nodes):
            of_graph = (around.name,) if around.name and " " not in around.name else around.tool
            agent, num_outer = (of_graph, len(nodes) - 1) if of_graph else (agent, num_outer)
        name = told_name if told_name and not is_class_name(told_name) else None
        return LiveRun(
            session=around.session,
            told_agent=told_agent,
            is_agent=is_agent,
            agent=agent,
            num_outer=num_outer,
            name=name,
            run_name=name or around.run_name,
            tool=None if is_node else around.tool,
        )

    def _begin(self, run_id: UUID, run: LiveRun) -> None:
        self._runs[run_id] = run
        if len(self._runs) > MAX_RUNS:
            self._runs.popitem(last=False)

    def on_chain_end(self, *result: Any, run_id: UUID, **kwargs: Any) -> None:
        """Remove a run that ended or failed."""
        self._runs.pop(run_id, None)

    on_retriever_start = on_chain_start
    on_chain_error = on_tool_end = on_tool_error = on_retriever_end = on_retriever_error = on_chain_end

    def caller(
        self,
        parent_run_id: UUID | None,
        metadata: Mapping[str, Any],
        tags: list[str],
        name: str | None = None,
    ) -> Caller:
        """Return the caller for this metadata, these tags and the enclosing run."""
        run = self._runs.get(parent_run_id) if parent_run_id else None
        is_inside = run is not None and run.told_agent == agent_of(metadata) and run.agent is not None
        return Caller(
            named=named_stage(metadata, tags),
            role=role_of(
                metadata,
                tags,
                run.num_outer if run and is_inside else None,
                run.agent if run and is_inside else None,
                name or (run.run_name if run else None),
            ),
            session=thread_of(metadata) or (run.session if run else None),
            by=named_by(metadata, tags, has_agent=bool(is_inside)),
        )

    def on_chat_model_start(
        self,
        *asked: Any,
        parent_run_id: UUID | None = None,
        tags: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        """Note the caller in this context, before the model call."""
        _CALLER.set(self.caller(parent_run_id, metadata or {}, tags or [], name))

    def on_llm_end(self, *result: Any, **kwargs: Any) -> None:
        """Remove the note after the call."""
        _CALLER.set(None)

    on_llm_error = on_llm_end


LISTENER = Listener()


def _listening() -> Iterator[Undo]:
    """Add the process's only listener to the callbacks of all runs.

    The callback is inheritable, because LangGraph's nodes take only the callbacks of their graph.
    """
    yield replace_method(AsyncCallbackManager, "on_llm_start", _not_telling_listener)
    register_configure_hook(ContextVar("agentspec_listener", default=LISTENER), inheritable=True)
    yield partial(_take_out, _configure_hooks[-1])
    FINDERS.append(_current_caller)
    yield partial(FINDERS.remove, _current_caller)


LISTENING = Instrumentation(_listening)


@cache
def listen_for_good() -> None:
    """Start listening permanently, for tagging models, which may be used at any time."""
    for instrumentation in (LISTENING, *guards()):
        instrumentation.begin(None)


def _take_out(hook: object) -> None:
    """Remove this hook from LangChain's list in place, since another thread may be reading the list."""
    for position, one in enumerate(_configure_hooks):
        if one is hook:
            del _configure_hooks[position]
            return


def _not_telling_listener(original: Callable[..., Any]) -> Callable[..., Any]:
    """Hide our listener: if any handler is inline, LangChain notifies only inline handlers of completions."""

    @wraps(original)
    def on_llm_start(manager: Any, *args: Any, **kwargs: Any) -> Any:
        manager.handlers = [handler for handler in manager.handlers if not isinstance(handler, Listener)]
        return original(manager, *args, **kwargs)

    return on_llm_start


def _current_caller() -> Caller:
    """Return the noted caller; for a call without LangChain's callbacks, that of the enclosing graph."""
    caller = _CALLER.get()
    if caller is None:
        config = ensure_config()
        caller = LISTENER.caller(None, config.get("metadata") or {}, config.get("tags") or [])
    return _inside(caller)


def _caller_of(run_manager: Any) -> Caller:
    """Return the caller of a completion, for which LangChain passes the run to the request method."""
    if run_manager is None:
        return _current_caller()
    return _inside(LISTENER.caller(run_manager.parent_run_id, run_manager.metadata, run_manager.tags))


def _inside(caller: Caller) -> Caller:
    """Complete the caller with values from an enclosing block or framework."""
    around = CALLER.get() or Caller()
    return Caller(
        named=around.named if caller.named is None else caller.named,
        role=caller.role or around.role,
        session=around.session or caller.session,
        is_untagged=around.is_untagged,
        by=caller.by if caller.role or caller.named is not None else around.by,
    )


def _checked(path: str | None) -> str | None:
    if path is not None:
        agentspec_headers(path)
    return path


StagePath = Annotated[str | None, AfterValidator(_checked)]


class StagedModel(BaseModel):
    """Common base of the chat and completion models."""

    stage: StagePath = None
    """The role that this model has, a path of 1 to 8 segments; None = taken from the graph."""

    workflow: StagePath = None
    """Prefix of every stage, e.g. ``agentic_sql``."""

    @model_validator(mode="after")
    def _begin_to_listen(self) -> Self:
        listen_for_good()
        return self

    @classmethod
    def get_lc_namespace(cls) -> list[str]:
        """Return the module path by which LangChain's loader finds the class."""
        return ["agentspec", "adapters", "langchain"]


class ChatAgentSpec(StagedModel, ChatOpenAI):  # type: ignore[misc]
    """``ChatOpenAI`` for an AgentSpec gateway: tags every call with its stage and its session.

    The stage is the first that exists of: ``metadata["agentspec_stage"]`` or a tag ``agentspec:<stage>`` of
    the call; ``stage``; the agent's name or the path of nodes around the call; a tag; the name of the run.
    ``workflow`` is the prefix of all of them. The session is the thread, else the outermost run. Explicit
    headers stay.

    ``response_metadata["speculative_decoding"]`` has the speculation figures (chat completions with n = 1).

    Raises:
        StageError: a call names a malformed stage. A malformed field raises pydantic's ValidationError.
    """

    stream_usage: bool | None = True

    @property
    def _llm_type(self) -> str:
        return "agentspec-chat"

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> Any:
        return {**super()._get_ls_params(stop=stop, **kwargs), "ls_provider": "agentspec"}

    def _get_request_payload(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        payload = super()._get_request_payload(*args, **kwargs)
        return _tagged(payload, _current_caller(), self, self.workflow, self.stage)

    def _create_chat_result(self, response: Any, *args: Any, **kwargs: Any) -> Any:
        return _with_figures(super()._create_chat_result(response, *args, **kwargs), response)

    def _convert_chunk_to_generation_chunk(self, chunk: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        return _with_chunk_figures(super()._convert_chunk_to_generation_chunk(chunk, *args, **kwargs), chunk)


class AgentSpecLLM(StagedModel, OpenAI):  # type: ignore[misc]
    """``OpenAI`` (plain completions) for an AgentSpec gateway, with the tags of :class:`ChatAgentSpec`.

    A batch is one request with one stage. With a config per prompt it is one request per prompt.
    """

    @property
    def _llm_type(self) -> str:
        return "agentspec"

    def _generate(self, prompts: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> Any:
        return super()._generate(prompts, stop, run_manager, **self._tagged(kwargs, run_manager))

    def _agenerate(self, prompts: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> Any:
        return super()._agenerate(prompts, stop, run_manager, **self._tagged(kwargs, run_manager))

    def _stream(self, prompt: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> Any:
        return super()._stream(prompt, stop, run_manager, **self._tagged(kwargs, run_manager))

    def _astream(self, prompt: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> Any:
        return super()._astream(prompt, stop, run_manager, **self._tagged(kwargs, run_manager))

    def _tagged(self, kwargs: dict[str, Any], run_manager: Any) -> dict[str, Any]:
        return _tagged(kwargs, _caller_of(run_manager), self, self.workflow, self.stage)

    def batch(self, inputs: list[Any], config: Any = None, **kwargs: Any) -> list[str]:
        """Send one request, or one per config."""
        batch = Runnable.batch if isinstance(config, list) else OpenAI.batch
        outputs: list[str] = batch(self, inputs, config, **kwargs)
        return outputs

    async def abatch(self, inputs: list[Any], config: Any = None, **kwargs: Any) -> list[str]:
        """Send one request, or one per config."""
        abatch = Runnable.abatch if isinstance(config, list) else OpenAI.abatch
        outputs: list[str] = await abatch(self, inputs, config, **kwargs)
        return outputs


def _tagging_payload(original: Callable[..., dict[str, Any]]) -> Callable[..., Any]:
    @wraps(original)
    def payload_of(model: Any, /, *args: Any, **kwargs: Any) -> dict[str, Any]:
        payload = original(model, *args, **kwargs)
        if isinstance(model, ChatAgentSpec) or not _TAGGING.is_in_force:
            return payload
        return _tagged(payload, _current_caller(), model, _TAGGING.workflow)

    return payload_of


def _tagging_completion(original: Callable[..., Any]) -> Callable[..., Any]:
    """Add a keyword argument to the call of ``original``, of any kind, and return its result."""

    @wraps(original)
    def ask(model: Any, /, prompts: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> Any:
        if _TAGGING.is_in_force and not isinstance(model, AgentSpecLLM):
            kwargs = _tagged(kwargs, _caller_of(run_manager), model, _TAGGING.workflow)
        return original(model, prompts, stop, run_manager, **kwargs)

    return ask


def _telling_result(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def result_of(model: Any, response: Any, *args: Any, **kwargs: Any) -> Any:
        return _with_figures(original(model, response, *args, **kwargs), response)

    return result_of


def _telling_chunk(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def chunk_of(model: Any, chunk: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        return _with_chunk_figures(original(model, chunk, *args, **kwargs), chunk)

    return chunk_of


_TAGGING = Instrumentation(
    replacements(
        (BaseChatOpenAI, "_get_request_payload", _tagging_payload),
        (BaseChatOpenAI, "_create_chat_result", _telling_result),
        (BaseChatOpenAI, "_convert_chunk_to_generation_chunk", _telling_chunk),
        *(
            (BaseOpenAI, name, _tagging_completion)
            for name in ("_generate", "_agenerate", "_stream", "_astream")
        ),
    ),
    beneath=LISTENING,
)
instrument = _TAGGING.instrument


def _tagged(
    payload: dict[str, Any], caller: Caller, model: Any, workflow: str | None, stage: str | None = None
) -> dict[str, Any]:
    """Return the payload with our headers, except those set explicitly for the call or the model."""
    given = payload.get("extra_headers") or {}
    ours = lacking(caller.headers(workflow, stage), model.default_headers, given)
    if not ours or not _gets_tags(model):
        return payload
    if logger.isEnabledFor(logging.DEBUG):
        by = caller.by if stage is None or caller.named is not None else "the model's stage"
        log_tags(payload.get("model") or model.model_name, {**ours, **given}, by)
    return {**payload, "extra_headers": {**ours, **given}}


def _gets_tags(model: Any) -> bool:
    """Return True if the model's server gets tags. An explicit base URL of our own models is a gateway's."""
    if isinstance(model, StagedModel):
        if is_disabled():
            return False
        if model.openai_api_base or os.environ.get("OPENAI_BASE_URL"):  # type: ignore[attr-defined]
            return True
    client = getattr(model, "root_client", None) or getattr(model, "root_async_client", None)
    return HOSTS.allow((client or model.client._client).base_url.host)


def _with_figures(result: Any, answer: Any) -> Any:
    """Add the response's figures to the messages of the chat result."""
    body = answer if isinstance(answer, dict) else answer.model_extra
    figures = _figures(body)
    if figures is not None:
        for generation in result.generations:
            generation.message.response_metadata[FIGURES_FIELD] = figures
    return result


def _with_chunk_figures(generation: Any, chunk: Mapping[str, Any]) -> Any:
    """Add the figures of a stream's chunk, or of the event that contains it, to the message."""
    figures = _figures(chunk) or _figures(chunk.get("chunk"))
    if figures is not None and generation is not None:
        generation.message.response_metadata[FIGURES_FIELD] = figures
    return generation


def _figures(body: Any) -> dict[str, Any] | None:
    metrics = body.get("metrics") if isinstance(body, dict) else None
    figures = metrics.get(FIGURES_FIELD) if isinstance(metrics, dict) else None
    return figures if isinstance(figures, dict) else None
