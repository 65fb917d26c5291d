"""An engine that plays agents' parts, and the components of an OpenHands agent.

Only a call's text decides its part, so the part can be compared with the stage that was sent.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from openhands.sdk import LLM, Agent, LLMSummarizingCondenser, Message, TextContent, Tool
from openhands.sdk.critic import CriticBase, CriticResult
from openhands.sdk.hooks import HookConfig, HookDefinition, HookMatcher
from openhands.sdk.security import SecurityRisk
from openhands.sdk.security.analyzer import SecurityAnalyzerBase
from openhands.sdk.subagent import AgentDefinition, agent_definition_to_factory, register_agent_if_absent
from openhands.sdk.tool import Action, Observation, ToolDefinition, ToolExecutor, register_tool
from openhands.tools.delegate import DelegateAction, DelegateExecutor, DelegateObservation

from agentspec.generation import GenerationDelta, GenerationRequest
from tests.gateway.support.scripted import ScriptedEngine

Call = tuple[str, dict[str, Any]]

SCOUT, COOK = "You scout ahead.", "You cook."
PARTS = {  # text in a call, and the stage of that call; the first match counts
    "context-aware state summary": "agent/condenser",
    "You judge the work of an agent.": "agent/critic",
    "You watch over safety.": "agent/security",
    "concise, descriptive titles": "agent/title",
    "You are auditing whether": "goal-judge",
    "Never let it touch the network.": "agent/prompt-hook/network",
    "You are the last to look.": "agent/agent-hook/last",
    "Look this up:": "agent/lookup",
    SCOUT: "scout",
    COOK: "cook",
    "You are OpenHands agent": "agent",
}


class ActingEngine(ScriptedEngine):
    """An engine that makes each run's main agent do the calls of ``plan`` in order, and answers the others.

    Work ends with a tool call, except for questions that want a text.
    """

    def reset(self, *plan: Call) -> None:
        """Forget all requests, and set the plan."""
        self.requests.clear()
        self.plan = plan
        self.num_answers: Counter[str] = Counter()

    def _script(self, request: GenerationRequest) -> Iterator[GenerationDelta]:
        return ScriptedEngine(steps=self._answer(request))._script(request)

    def _answer(self, request: GenerationRequest) -> tuple[str, ...]:
        if self.plan and part_of(request) == "agent":
            run = run_of(request)
            self.num_answers[run] += 1
            if self.num_answers[run] <= len(self.plan):
                name, arguments = self.plan[self.num_answers[run] - 1]
                return (called(name, json.loads(json.dumps(arguments).replace("RUN", run))),)
        if request.tools and "What is" not in str(request.prompt[-1]["content"]):
            return (called("finish", {"message": '{"decision": "allow"}'}),)
        return ('{"decision": "allow", "score": 1.0, "complete": true}',)


def called(name: str, arguments: dict[str, Any]) -> str:
    """Return a tool call in the form of Hermes."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def text_of(request: GenerationRequest) -> str:
    """Return all messages as text."""
    return json.dumps([dict(message) for message in request.prompt])


def part_of(request: GenerationRequest) -> str:
    """Return the stage expected for the call. An agent's task is not part of its role."""
    role = json.dumps(dict(request.prompt[0])) if len(request.prompt) > 1 else text_of(request)
    return next(stage for words, stage in PARTS.items() if words in role)


def run_of(request: GenerationRequest) -> str:
    """Return the run of the call."""
    found = re.search(r"run-\d+", text_of(request))
    assert found
    return found[0]


def wrong(engine: ActingEngine) -> list[tuple[str, str]]:
    """Return the calls that had another stage than expected."""
    told = [(f"repair/{part_of(request)}", request.tags.stage.name) for request in engine.requests]
    return [(expected, stage) for expected, stage in told if expected != stage]


def asking(llm: LLM, system: str, question: str = "?") -> str:
    """Return the model's answer."""
    messages = [("system", system), ("user", question)]
    answer = llm.completion([Message(role=role, content=[TextContent(text=text)]) for role, text in messages])
    content = answer.message.content[0]
    assert isinstance(content, TextContent)
    return content.text


class ModelCritic(CriticBase):
    """A critic that calls a model."""

    llm: LLM

    def evaluate(self, events: Sequence[Any], git_patch: str | None = None) -> CriticResult:
        return CriticResult(score=1.0, message=asking(self.llm, "You judge the work of an agent."))


class ModelAnalyzer(SecurityAnalyzerBase):
    """A security analyzer that calls a model."""

    llm: LLM

    def security_risk(self, action: Any) -> SecurityRisk:
        asking(self.llm, "You watch over safety.")
        return SecurityRisk.LOW


class LookupAction(Action):
    """A question to look up."""

    question: str


class LookupObservation(Observation):
    """The answer found."""


class LookupExecutor(ToolExecutor[LookupAction, LookupObservation]):
    """An executor that calls the agent's own model."""

    def __call__(self, action: LookupAction, conversation: Any = None) -> LookupObservation:
        return LookupObservation.from_text(asking(conversation.agent.llm, f"Look this up: {action.question}"))


class LookupTool(ToolDefinition[LookupAction, LookupObservation]):
    """A tool that calls a model."""

    @classmethod
    def create(cls, *args: Any, **params: Any) -> list[LookupTool]:
        return [
            cls(
                action_type=LookupAction,
                observation_type=LookupObservation,
                description="Look something up.",
                executor=LookupExecutor(),
            )
        ]


class DelegateTool(ToolDefinition[DelegateAction, DelegateObservation]):
    """Sub-agents in threads of their own. OpenHands has the executor, but defines no tool for it."""

    @classmethod
    def create(cls, *args: Any, **params: Any) -> list[DelegateTool]:
        return [
            cls(
                action_type=DelegateAction,
                observation_type=DelegateObservation,
                description="Delegate tasks to sub-agents.",
                executor=DelegateExecutor(),
            )
        ]


def agent_of(llm: LLM, *tools: str, **fields: Any) -> Agent:
    """Return an agent with these tools, and with sub-agents that it may start."""
    register_tool(LookupTool.name, LookupTool)
    register_tool(DelegateTool.name, DelegateTool)
    for name, prompt in (("scout", SCOUT), ("cook", COOK)):
        definition = AgentDefinition(name=name, description=name, system_prompt=prompt, tools=[])
        register_agent_if_absent(name, agent_definition_to_factory(definition), definition)
    return Agent(llm=llm, tools=[Tool(name=name) for name in tools], **fields)


def condenser_of(llm: LLM) -> LLMSummarizingCondenser:
    """Return a condenser with a low limit, so that it soon runs."""
    return LLMSummarizingCondenser(llm=llm, max_size=8, keep_first=2)


def hooks() -> HookConfig:
    """Return two hooks: a prompt before a tool, and an agent at the end."""
    ask = HookDefinition(type="prompt", name="network", prompt="Never let it touch the network.")
    look = HookDefinition(type="agent", name="last", system_prompt="You are the last to look.")
    return HookConfig(
        pre_tool_use=[HookMatcher(matcher="terminal", hooks=[ask])], stop=[HookMatcher(hooks=[look])]
    )
