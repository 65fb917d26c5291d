"""LangChain and LangGraph: every call of a graph tagged with its stage, without a change to the graph.

    model = ChatAgentSpec(model="agentspec-sql", base_url="http://127.0.0.1:8000/v1", api_key="none")

or, for models that are there already, before they are used:

    instrument(workflow="agentic_sql")

A listener among LangChain's callbacks notes, in a context variable, who is about to call a model; the model's
request takes it from there. ``graph_roles`` makes a name of what was noted.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, wraps
from typing import Annotated, Any, Self
from uuid import UUID

from langchain_core.callbacks import AsyncCallbackManager, BaseCallbackHandler
from langchain_core.runnables import Runnable, ensure_config
from langchain_core.tracers.context import register_configure_hook
from langchain_openai import ChatOpenAI, OpenAI
from langchain_openai.chat_models.base import BaseChatOpenAI
from langchain_openai.llms.base import BaseOpenAI
from pydantic import AfterValidator, BaseModel, model_validator

from agentspec.adapters.caller import CALLER, Caller
from agentspec.adapters.graph_roles import agent_of, named_stage, nodes_of, role_of, thread_of
from agentspec.adapters.headers import agentspec_headers
from agentspec.adapters.replacement import Tagging, replace_method

FIGURES_FIELD = "speculative_decoding"
MAX_RUNS = 1 << 15  # LangChain tells no end of a tool or a stream that was cancelled: the oldest are let go


@dataclass(frozen=True, slots=True)
class LiveRun:
    """A chain, graph or tool under way: its outermost run, and the agent around it with its nodes around."""

    session: str
    agent: str | None
    num_outer: int


_CALLER: ContextVar[Caller | None] = ContextVar("agentspec_langchain_caller", default=None)


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
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """A graph, a node, a tool, ... begins."""
        parent = self._runs.get(parent_run_id) if parent_run_id else None
        session = parent.session if parent else str(parent_run_id or run_id)
        metadata = metadata or {}
        agent = agent_of(metadata)
        if parent and parent.agent == agent:
            num_outer = parent.num_outer
        else:
            num_outer = len(nodes_of(metadata)) if agent else 0
        self._runs[run_id] = LiveRun(session, agent, num_outer)
        if len(self._runs) > MAX_RUNS:
            self._runs.popitem(last=False)

    def on_chain_end(self, *result: Any, run_id: UUID, **kwargs: Any) -> None:
        """It is over, one way or the other."""
        self._runs.pop(run_id, None)

    on_tool_start = on_retriever_start = on_chain_start
    on_chain_error = on_tool_end = on_tool_error = on_retriever_end = on_retriever_error = on_chain_end

    def caller(self, parent_run_id: UUID | None, metadata: Mapping[str, Any], tags: list[str]) -> Caller:
        """What these make of a call, and the run it is part of."""
        run = self._runs.get(parent_run_id) if parent_run_id else None
        is_inside = run is not None and run.agent is not None and run.agent == agent_of(metadata)
        return Caller(
            named=named_stage(metadata, tags),
            role=role_of(metadata, tags, run.num_outer if run and is_inside else None),
            session=thread_of(metadata) or (run.session if run else None),
        )

    def on_chat_model_start(
        self,
        *asked: Any,
        parent_run_id: UUID | None = None,
        tags: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """A model is about to be called, in this context."""
        _CALLER.set(self.caller(parent_run_id, metadata or {}, tags or []))

    def on_llm_end(self, *result: Any, **kwargs: Any) -> None:
        """The call was made: what is noted must not outlive it."""
        _CALLER.set(None)

    on_llm_error = on_llm_end


@cache
def _listener() -> Listener:
    """The one listener of this process, among the callbacks of all runs, in whatever thread they are.

    It is inherited: LangGraph's nodes take the callbacks of their graph and ask for no others.
    """
    listener = Listener()
    register_configure_hook(ContextVar("agentspec_listener", default=listener), inheritable=True)
    replace_method(AsyncCallbackManager, "on_llm_start", _not_telling_listener)
    return listener


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
        caller = _listener().caller(None, config.get("metadata") or {}, config.get("tags") or [])
    return _inside(caller)


def _caller_of(run_manager: Any) -> Caller:
    """Of a completion: LangChain hands its run to what makes the request."""
    if run_manager is None:
        return _current_caller()
    return _inside(_listener().caller(run_manager.parent_run_id, run_manager.metadata, run_manager.tags))


def _inside(caller: Caller) -> Caller:
    """The caller, with what a block of code or another framework around it tells and it does not."""
    around = CALLER.get() or Caller()
    return Caller(
        named=around.named if caller.named is None else caller.named,
        role=caller.role or around.role,
        session=around.session or caller.session,
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
        _listener()
        return self

    @classmethod
    def get_lc_namespace(cls) -> list[str]:
        """Where LangChain's loader finds the class."""
        return ["agentspec", "adapters", "langchain"]


class ChatAgentSpec(StagedModel, ChatOpenAI):  # type: ignore[misc]
    """``ChatOpenAI`` for a gateway of ours: every call is tagged with its stage and its session.

    The stage is, first that answers: ``metadata["agentspec_stage"]`` or a tag ``agentspec:<stage>`` of the
    call; ``stage``; the agent's name or the path of nodes around the call; a tag. ``workflow`` goes before
    all of them. The session is the thread, else the outermost run. Headers that are given by hand stay.

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
        return _tagged(payload, _current_caller().headers(self.workflow, self.stage), self.default_headers)

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
        headers = _caller_of(run_manager).headers(self.workflow, self.stage)
        return _tagged(kwargs, headers, self.default_headers)

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


def instrument(*, workflow: str | None = None) -> Callable[[], None]:
    """Tag the calls of every ``ChatOpenAI`` and ``OpenAI``, also of those that exist, until it is undone.

    Stage, session and figures are as with :class:`ChatAgentSpec`, whose own instances stay as they are.
    The workflow is that of the last instrumentation that is in force. Other servers get two headers more.

    Args:
        workflow: what goes before every stage, e.g. ``agentic_sql``.

    Returns:
        what undoes it.

    Raises:
        StageError: ``workflow`` is malformed.
    """
    _checked(workflow)
    _listener()
    return _TAGGING.instrument(workflow)


def _tagging_payload(original: Callable[..., dict[str, Any]]) -> Callable[..., Any]:
    @wraps(original)
    def payload_of(model: Any, /, *args: Any, **kwargs: Any) -> dict[str, Any]:
        payload = original(model, *args, **kwargs)
        if isinstance(model, ChatAgentSpec) or not _TAGGING.is_in_force:
            return payload
        return _tagged(payload, _current_caller().headers(_TAGGING.workflow), model.default_headers)

    return payload_of


def _tagging_completion(original: Callable[..., Any]) -> Callable[..., Any]:
    """Of whatever kind ``original`` is: it gets a keyword argument more, and what it returns is returned."""

    @wraps(original)
    def ask(model: Any, /, prompts: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> Any:
        if _TAGGING.is_in_force and not isinstance(model, AgentSpecLLM):
            headers = _caller_of(run_manager).headers(_TAGGING.workflow)
            kwargs = _tagged(kwargs, headers, model.default_headers)
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
    payload: dict[str, Any], headers: Mapping[str, str], model_headers: Mapping[str, str] | None
) -> dict[str, Any]:
    """The payload with our headers, but for those that were given by hand for the call or the model."""
    given = payload.get("extra_headers") or {}
    by_hand = {name.lower() for name in (*given, *(model_headers or {}))}
    ours = {name: value for name, value in headers.items() if name not in by_hand}
    return {**payload, "extra_headers": {**ours, **given}} if ours else payload


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
