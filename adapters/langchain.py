"""LangChain and LangGraph: every call of a graph tagged with its stage, without a change to the graph.

    model = ChatAgentSpec(model="agentspec-sql", base_url="http://127.0.0.1:8000/v1", api_key="none")

or, for models that are there already, before they are used:

    instrument(workflow="agentic_sql")

A listener among LangChain's callbacks notes, in a context variable, who is about to call a model; the model's
request takes it from there. ``graph_roles`` makes a name of what was noted.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import lru_cache, wraps
from threading import Lock
from typing import Annotated, Any, Self
from uuid import UUID

from pydantic import AfterValidator, BaseModel, model_validator

from agentspec.adapters.frameworks import framework

with framework():
    from langchain_core.callbacks import AsyncCallbackManager, BaseCallbackHandler
    from langchain_core.runnables import Runnable, ensure_config
    from langchain_core.tracers.context import _configure_hooks, register_configure_hook
    from langchain_openai import ChatOpenAI, OpenAI
    from langchain_openai.chat_models.base import BaseChatOpenAI
    from langchain_openai.llms.base import BaseOpenAI

from agentspec.adapters.allowed_hosts import Hosts, is_disabled
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
from agentspec.adapters.langchain_hosts import gets_tags
from agentspec.adapters.redirects import redirects
from agentspec.adapters.replacement import Tagging, replace_method
from agentspec.adapters.tagging import begin_tagging

FIGURES_FIELD = "speculative_decoding"
MANY_NAMES = 1024  # of runs are looked up
MAX_RUNS = 1 << 15  # LangChain tells no end of a tool or a stream that was cancelled: the oldest are let go


@dataclass(frozen=True, slots=True)
class LiveRun:
    """A chain, graph, node or tool under way.

    Attributes:
        session: of its outermost run.
        told_agent: the agent's name in the metadata, which runs inside inherit.
        is_agent: True if that name begins here.
        agent: the path that stands for the agent around.
        num_outer: how many nodes there are around that agent.
        name: its own, if somebody gave it one.
        run_name: the same, or that of the nearest run around.
        tool: the path of the tool around, if there is no graph in between.
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
    """True if LangChain names runs so that have no name: ``RunnableSequence``, ``RunnableParallel<a>``."""
    plain = name.partition("<")[0]
    return plain == _DEFAULT_GRAPH_NAME or any(one.__name__ == plain for one in _subclasses(Runnable))


class Listener(BaseCallbackHandler):  # type: ignore[misc]
    """Notes each call in the context it is made in; inline, since a thread or a task has one of its own."""

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
        """A graph, a node, a retriever, ... begins."""
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
        """A tool begins: an agent in it that has no name has the tool's."""
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
        """It is over, one way or the other."""
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
        """What these make of a call, and the run it is part of."""
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
        """A model is about to be called, in this context."""
        _CALLER.set(self.caller(parent_run_id, metadata or {}, tags or [], name))

    def on_llm_end(self, *result: Any, **kwargs: Any) -> None:
        """The call was made: what is noted must not outlive it."""
        _CALLER.set(None)

    on_llm_error = on_llm_end


class Listening:
    """The one listener of this process, among the callbacks of all runs for as long as somebody needs it.

    It is inherited: LangGraph's nodes take the callbacks of their graph and ask for no others.
    """

    def __init__(self) -> None:
        self.listener = Listener()
        self._in_force: list[object] = []
        self._undoing: list[Callable[[], None]] = []
        self._is_for_good = False
        self._lock = Lock()

    def begin(self) -> Callable[[], None]:
        """Listen from now on; what undoes it is returned."""
        mine = object()
        with self._lock:
            if not self._in_force:
                self._put()
            self._in_force.append(mine)

        def undo() -> None:
            with self._lock:
                if mine in self._in_force:
                    self._in_force.remove(mine)
                    while self._undoing and not self._in_force:
                        self._undoing.pop()()

        return undo

    def begin_for_good(self) -> None:
        """For models that were made to be tagged: they may be used at any time."""
        if not self._is_for_good:
            self._is_for_good = True
            self.begin()
            for guard in redirects():
                guard.instrument(None)

    def _put(self) -> None:
        self._undoing.append(replace_method(AsyncCallbackManager, "on_llm_start", _not_telling_listener))
        register_configure_hook(ContextVar("agentspec_listener", default=self.listener), inheritable=True)
        hook = _configure_hooks[-1]
        self._undoing.append(lambda: _take_out(hook))
        FINDERS.append(_current_caller)
        self._undoing.append(lambda: FINDERS.remove(_current_caller))


def _take_out(hook: object) -> None:
    """Others' hooks stay where they are, and the list is the same: it may be read in another thread."""
    for position, one in enumerate(_configure_hooks):
        if one is hook:
            del _configure_hooks[position]
            return


_LISTENING = Listening()


def _not_telling_listener(original: Callable[..., Any]) -> Callable[..., Any]:
    """Of completions LangChain tells the inline handlers alone, if there are any: ours is not to be there."""

    @wraps(original)
    def on_llm_start(manager: Any, *args: Any, **kwargs: Any) -> Any:
        manager.handlers = [handler for handler in manager.handlers if not isinstance(handler, Listener)]
        return original(manager, *args, **kwargs)

    return on_llm_start


def _current_caller() -> Caller:
    """As it was noted; a call past LangChain's callbacks has at least the graph around it."""
    caller = _CALLER.get()
    if caller is None:
        config = ensure_config()
        caller = _LISTENING.listener.caller(None, config.get("metadata") or {}, config.get("tags") or [])
    return _inside(caller)


def _caller_of(run_manager: Any) -> Caller:
    """Of a completion: LangChain hands its run to what makes the request."""
    if run_manager is None:
        return _current_caller()
    return _inside(
        _LISTENING.listener.caller(run_manager.parent_run_id, run_manager.metadata, run_manager.tags)
    )


def _inside(caller: Caller) -> Caller:
    """The caller, with what a block of code or another framework around it tells and it does not."""
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
    """What both kinds of model have in common."""

    stage: StagePath = None
    """The role that this model has, a path of 1 to 8 segments; None = taken from the graph."""

    workflow: StagePath = None
    """What goes before every stage, e.g. ``agentic_sql``."""

    @model_validator(mode="after")
    def _begin_to_listen(self) -> Self:
        _LISTENING.begin_for_good()
        return self

    @classmethod
    def get_lc_namespace(cls) -> list[str]:
        """Where LangChain's loader finds the class."""
        return ["agentspec", "adapters", "langchain"]


class ChatAgentSpec(StagedModel, ChatOpenAI):  # type: ignore[misc]
    """``ChatOpenAI`` for a gateway of ours: every call is tagged with its stage and its session.

    The stage is, first that answers: ``metadata["agentspec_stage"]`` or a tag ``agentspec:<stage>`` of the
    call; ``stage``; the agent's name or the path of nodes around the call; a tag; the name of the run.
    ``workflow`` goes before all of them. The session is the thread, else the outermost run. Headers that are
    given by hand stay.

    What speculation did is in ``response_metadata["speculative_decoding"]`` (chat completions with n = 1).

    Raises:
        StageError: a call names a malformed stage. In a field it is pydantic's ValidationError.
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
    """``OpenAI``, plain completions, for a gateway of ours: tagged as :class:`ChatAgentSpec` is.

    A batch is one request, and has one stage; with a config for each prompt it is one request for each.
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
        """One request, or one for each config."""
        batch = Runnable.batch if isinstance(config, list) else OpenAI.batch
        outputs: list[str] = batch(self, inputs, config, **kwargs)
        return outputs

    async def abatch(self, inputs: list[Any], config: Any = None, **kwargs: Any) -> list[str]:
        """One request, or one for each config."""
        abatch = Runnable.abatch if isinstance(config, list) else OpenAI.abatch
        outputs: list[str] = await abatch(self, inputs, config, **kwargs)
        return outputs


def instrument(*, workflow: str | None = None, hosts: Hosts | None = None) -> Callable[[], None]:
    """Tag the calls of every ``ChatOpenAI`` and ``OpenAI``, also of those that exist, until it is undone.

    Stage, session and figures are as with :class:`ChatAgentSpec`, whose own instances stay as they are.
    The workflow is that of the last instrumentation that is in force.

    Args:
        workflow: what goes before every stage, e.g. ``agentic_sql``.
        hosts: servers that get tags besides private ones and the gateway, as in ``openai.instrument``.

    Returns:
        what undoes it, and leaves nothing behind but what a ``ChatAgentSpec`` or ``AgentSpecLLM`` needs.

    Raises:
        StageError: ``workflow`` is malformed.
        ConfigError: ``hosts`` is.
    """
    if is_disabled():
        return begin_tagging(_TAGGING, workflow, hosts)
    undo_listening = _LISTENING.begin()
    try:
        undo_tagging = begin_tagging(_TAGGING, workflow, hosts)
    except BaseException:  # a version of the framework that has no such method
        undo_listening()
        raise

    def undo() -> None:
        undo_tagging()
        undo_listening()

    return undo


def _tagging_payload(original: Callable[..., dict[str, Any]]) -> Callable[..., Any]:
    @wraps(original)
    def payload_of(model: Any, /, *args: Any, **kwargs: Any) -> dict[str, Any]:
        payload = original(model, *args, **kwargs)
        if isinstance(model, ChatAgentSpec) or not _TAGGING.is_in_force:
            return payload
        return _tagged(payload, _current_caller(), model, _TAGGING.workflow)

    return payload_of


def _tagging_completion(original: Callable[..., Any]) -> Callable[..., Any]:
    """Of whatever kind ``original`` is: it gets a keyword argument more, and what it returns is returned."""

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


_TAGGING = Tagging(
    (BaseChatOpenAI, "_get_request_payload", _tagging_payload),
    (BaseChatOpenAI, "_create_chat_result", _telling_result),
    (BaseChatOpenAI, "_convert_chunk_to_generation_chunk", _telling_chunk),
    *((BaseOpenAI, name, _tagging_completion) for name in ("_generate", "_agenerate", "_stream", "_astream")),
)


def _tagged(
    payload: dict[str, Any], caller: Caller, model: Any, workflow: str | None, stage: str | None = None
) -> dict[str, Any]:
    """The payload with our headers, but for those that were given by hand for the call or the model."""
    given = payload.get("extra_headers") or {}
    ours = lacking(caller.headers(workflow, stage), model.default_headers, given)
    if not ours or not gets_tags(model, is_ours=isinstance(model, StagedModel)):
        return payload
    if logger.isEnabledFor(logging.DEBUG):
        by = caller.by if stage is None or caller.named is not None else "the model's stage"
        log_tags(payload.get("model") or model.model_name, {**ours, **given}, by)
    return {**payload, "extra_headers": {**ours, **given}}


def _with_figures(result: Any, answer: Any) -> Any:
    """The chat result, its message with the answer's figures."""
    body = answer if isinstance(answer, dict) else answer.model_extra
    figures = _figures(body)
    if figures is not None:
        for generation in result.generations:
            generation.message.response_metadata[FIGURES_FIELD] = figures
    return result


def _with_chunk_figures(generation: Any, chunk: Mapping[str, Any]) -> Any:
    """The same of a stream's chunk, or of the event that has it inside."""
    figures = _figures(chunk) or _figures(chunk.get("chunk"))
    if figures is not None and generation is not None:
        generation.message.response_metadata[FIGURES_FIELD] = figures
    return generation


def _figures(body: Any) -> dict[str, Any] | None:
    metrics = body.get("metrics") if isinstance(body, dict) else None
    figures = metrics.get(FIGURES_FIELD) if isinstance(metrics, dict) else None
    return figures if isinstance(figures, dict) else None
