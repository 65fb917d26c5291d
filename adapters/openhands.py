"""OpenHands: tag every call with the agent that makes it, without changing the program.

    instrument(workflow="repair")
    Conversation(agent=agent, workspace=folder).run()

A conversation passes its ``LLMCallContext`` to its calls and to the conversations of its sub-agents. The
adapter adds the agent's name and the outermost conversation to it. Hooks note an agent's other duties, such
as condensing, around the functions that do them. The adapter depends only on the names of these functions.

The stage is the name of the agent. A sub-agent has its registered name, the main agent its model's
``usage_id``, else ``agent``. Other duties are below the agent: ``agent/condenser``, ``critic``, ``security``,
``title``, ``agent-hook/<name>``, ``prompt-hook/<name>``, or the name of a tool that calls a model. The
session is the outermost conversation.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, fields
from functools import partial, wraps
from inspect import iscoroutinefunction
from types import ModuleType
from typing import Any, Self

from agentspec.adapters.instrumentation import Instrumentation, framework, replacements

with framework():
    from openhands.sdk.agent import Agent
    from openhands.sdk.agent import agent as agent_module
    from openhands.sdk.agent.critic_mixin import CriticMixin
    from openhands.sdk.conversation import title_utils
    from openhands.sdk.conversation.goal import controller
    from openhands.sdk.conversation.impl.local_conversation import LocalConversation
    from openhands.sdk.hooks.executor import HookExecutor
    from openhands.sdk.llm import llm as llm_module
    from openhands.sdk.llm.call_context import LLMCallContext, resolve_llm_call_context
    from openhands.sdk.security.analyzer import SecurityAnalyzerBase
    from openhands.sdk.subagent.registry import AgentFactory

from agentspec.adapters.caller import Caller, holding
from agentspec.adapters.client_requests import log_tags, logger
from agentspec.adapters.headers import lacking
from agentspec.adapters.hooks import hinted
from agentspec.adapters.litellm import gets_tags

__all__ = ["instrument"]

MAIN_AGENT = "agent"

_AGENT_HOOK = "agent-hook"
_NAMELESS = ("default", MAIN_AGENT, "profile")  # usage ids without a role; a profile is a model
_NAME = "_agentspec_name"


@dataclass(frozen=True)
class Lineage(LLMCallContext):  # type: ignore[misc]
    """A conversation's call context extended by its agent.

    Attributes:
        agent: name of the agent; for a hook, below the name of the agent that it belongs to.
        usage_id: usage id of the agent's own model.
        outermost: id of the outermost conversation.
    """

    agent: tuple[str, ...] = ()
    usage_id: str = ""
    outermost: str | None = None

    @classmethod
    def of(cls, context: LLMCallContext, agent: Any, parent: LLMCallContext | None = None) -> Self:
        """Extend this agent's ``context``; ``parent`` is that of the conversation that started this one."""
        around = parent if isinstance(parent, Lineage) else cls()
        usage_id = agent.llm.usage_id
        return cls(
            **{field.name: getattr(context, field.name) for field in fields(LLMCallContext)},
            agent=_agent_name(vars(agent).get(_NAME), usage_id, around.agent),
            usage_id=usage_id,
            outermost=around.outermost or (parent or context).session_id,
        )


def _agent_name(name: str | None, usage_id: str, around: tuple[str, ...]) -> tuple[str, ...]:
    if name is not None:
        return (name,)
    if usage_id.startswith(_AGENT_HOOK):
        return (*around, *usage_id.split(":"))
    return around or _usage_name(usage_id) or (MAIN_AGENT,)  # a forked conversation keeps its agent


def _usage_name(usage_id: str) -> tuple[str, ...]:
    names = usage_id.split(":")
    return () if names[0] in _NAMELESS else tuple(names)


_DUTY: ContextVar[tuple[str, ...] | None] = ContextVar("agentspec_openhands_duty", default=None)
"""What the agent does besides answering; empty while it answers, None where no agent is at work."""

_Name = Callable[..., tuple[str, ...]]


def _always(name: str) -> _Name:
    return lambda *args, **kwargs: (name,)


_DUTIES: tuple[tuple[type | ModuleType, str, _Name], ...] = (
    (agent_module, "prepare_llm_messages", _always("condenser")),
    (agent_module, "aprepare_llm_messages", _always("condenser")),
    (CriticMixin, "_evaluate_with_critic", _always("critic")),
    (SecurityAnalyzerBase, "_analyze_actions", _always("security")),
    (title_utils, "generate_title_with_llm", _always("title")),
    (controller, "judge_goal", _always("goal-judge")),
    (
        HookExecutor,
        "_execute_prompt_hook",
        lambda executor, hook, event: ("prompt-hook", hook.name or "default"),
    ),
    (Agent, "_execute_action_event", lambda agent, conversation, event: (event.tool_name,)),
)
"""Where an agent does something besides answering, and the name of it."""


def _caller_of(llm: Any, context: LLMCallContext) -> Caller:
    """Return the caller of this model: the agent with its current duty, else with the model's usage id."""
    lineage = context if isinstance(context, Lineage) else Lineage(outermost=context.session_id)
    duty = _DUTY.get()
    if duty is None:
        duty = () if llm.usage_id == lineage.usage_id else _usage_name(llm.usage_id)
    return hinted(*lineage.agent, *duty, session=lineage.outermost, by="OpenHands' agent name")


def _tagging(original: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    @wraps(original)
    def options_of(llm: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        options = original(llm, *args, **kwargs)
        if not _TAGGING.is_in_force:  # other code may hold a wrapper of this
            return options
        caller = _caller_of(llm, resolve_llm_call_context(kwargs.get("call_context")))
        by_hand = dict(options.get("extra_headers") or {})
        mine = lacking(caller.headers(_TAGGING.workflow), by_hand)
        if caller.is_untagged or not gets_tags(llm.model, {"api_base": llm.base_url}):
            mine = {}
        elif logger.isEnabledFor(logging.DEBUG):
            log_tags(llm.model, {**by_hand, **mine}, caller.by)
        return {**options, "extra_headers": {**by_hand, **mine}}

    return options_of


def _descending(original: Callable[..., None]) -> Callable[..., None]:
    @wraps(original)
    def begin(conversation: Any, *args: Any, **kwargs: Any) -> None:
        original(conversation, *args, **kwargs)
        parent = kwargs.get("_parent_llm_call_context")
        _know_lineage(conversation, parent)

    return begin


def _know_lineage(conversation: Any, parent: LLMCallContext | None = None) -> None:
    context = conversation._llm_call_context
    conversation._llm_call_context = Lineage.of(context, conversation.agent, parent)


def _naming(original: Any) -> property:
    """Store a registered factory's name in the agents that it makes; pydantic copies the name with them."""

    def factory_of(factory: Any) -> Callable[[Any], Any]:
        make = original.__get__(factory, type(factory))

        @wraps(make)
        def make_known(llm: Any) -> Any:
            agent = make(llm)
            vars(agent)[_NAME] = factory.definition.name
            return agent

        return make_known

    return property(factory_of)


def _answering(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap an agent's step; also extend the context of conversations older than this instrumentation."""
    step = _dutiful(original, lambda *args, **kwargs: ())

    @wraps(original)
    def step_of(agent: Any, conversation: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(conversation.get_llm_call_context(), Lineage):
            _know_lineage(conversation)
        return step(agent, conversation, *args, **kwargs)

    return step_of


def _dutiful(original: Callable[..., Any], name: _Name) -> Callable[..., Any]:
    @wraps(original)
    def do(*args: Any, **kwargs: Any) -> Any:
        with holding(_DUTY, name(*args, **kwargs)):
            return original(*args, **kwargs)

    @wraps(original)
    async def ado(*args: Any, **kwargs: Any) -> Any:
        with holding(_DUTY, name(*args, **kwargs)):
            return await original(*args, **kwargs)

    return ado if iscoroutinefunction(original) else do


_TAGGING = Instrumentation(
    replacements(
        (llm_module, "select_chat_options", _tagging),
        (llm_module, "select_responses_options", _tagging),
        (LocalConversation, "__init__", _descending),
        (AgentFactory, "factory_func", _naming),
        (Agent, "step", _answering),
        (Agent, "astep", _answering),
        *((owner, function, partial(_dutiful, name=name)) for owner, function, name in _DUTIES),
    )
)
instrument = _TAGGING.instrument
