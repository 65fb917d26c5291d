"""Run one task with an OpenHands agent: its outputs and the test results."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from examples.openhands.task import Task
from examples.openhands.terminal import terminal
from examples.openhands.workspace import fresh, judged, results_of
from openhands.sdk import LLM, Agent, AgentContext, Conversation, LLMSummarizingCondenser, Tool
from openhands.sdk.conversation.exceptions import ConversationRunError
from openhands.sdk.event import ActionEvent, MessageEvent
from openhands.sdk.subagent import register_agent_if_absent
from openhands.tools.file_editor import FileEditorTool
from openhands.tools.task import TaskToolSet

MAX_STEPS = 60
MAX_EVENTS = 20  # beyond, the oldest are condensed; low enough that each repair does so
REVIEWER = (
    "You review a change that somebody else made. You change nothing. You say what is right and what is not."
)
OFF = {"X-AgentSpec-Max-Draft": "0", "X-AgentSpec-Learn": "0"}


@dataclass(frozen=True, slots=True)
class Repair:
    """A task before and after its repair: test results by name, the agent's outputs, the files, the time.

    ``failure`` is the reason why the agent did not finish.
    """

    task: Task
    before: dict[str, bool]
    after: dict[str, bool]
    outputs: tuple[str, ...]
    files: dict[str, str]
    seconds: float
    failure: str | None = None

    @property
    def is_repaired(self) -> bool:
        """True if every original test exists and passes."""
        return set(self.after) == set(self.before) and all(self.after.values())

    def is_like(self, other: Repair) -> bool:
        """Return True if outputs and files are the same."""
        return self.outputs == other.outputs and self.files == other.files


def model_at(url: str, name: str, key: str, *, speculate: bool = True) -> LLM:
    """Return the model, with greedy decoding."""
    return LLM(
        model=f"openai/{name}",
        base_url=url,
        api_key=key,
        temperature=0.0,
        num_retries=1,
        extra_headers=None if speculate else OFF,
    )


def repair(task: Task, llm: LLM) -> Repair:
    """Have an agent repair the task in a fresh workspace."""
    folder = fresh(task)
    before = results_of(folder)
    register_agent_if_absent("reviewer", _reviewer, "Reviews a change: looks at the diff and runs the tests.")
    failure = None
    started = time.perf_counter()
    conversation = Conversation(
        agent=_agent(llm), workspace=folder, visualizer=None, max_iteration_per_run=MAX_STEPS
    )
    try:
        conversation.send_message(task.question(folder))
        try:
            conversation.run()
        except ConversationRunError as error:
            failure = str(error.__cause__ or error).partition("\n")[0]
        outputs = tuple(_outputs(conversation.state.events))
    finally:
        conversation.close()
    seconds = time.perf_counter() - started
    return Repair(task, before, judged(task, folder), outputs, _files(folder), seconds, failure)


def _agent(llm: LLM) -> Agent:
    tools = [terminal(), Tool(name=FileEditorTool.name), Tool(name=TaskToolSet.name)]
    return Agent(llm=llm, tools=tools, condenser=_condenser(llm))


def _reviewer(llm: LLM) -> Agent:
    context = AgentContext(system_message_suffix=REVIEWER)
    return Agent(llm=llm, tools=[terminal()], agent_context=context, condenser=_condenser(llm))


def _condenser(llm: LLM) -> LLMSummarizingCondenser:
    own = llm.model_copy(update={"usage_id": "condenser"})
    return LLMSummarizingCondenser(llm=own, max_size=MAX_EVENTS, keep_first=2)


def _outputs(events: Any) -> Iterator[str]:
    """Yield the agent's outputs, call by call."""
    for event in events:
        if isinstance(event, ActionEvent):
            yield f"{event.tool_name} {event.tool_call.arguments}"
        elif isinstance(event, MessageEvent) and event.source == "agent":
            yield str(event.llm_message.content)


def _files(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.py"))}
