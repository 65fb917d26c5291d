"""One task given to an agent of OpenHands: what it did, and what the tests say of it."""

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
MAX_EVENTS = 20  # then the oldest are condensed; so few that each repair comes to it
REVIEWER = (
    "You review a change that somebody else made. You change nothing. You say what is right and what is not."
)
OFF = {"X-AgentSpec-Max-Draft": "0", "X-AgentSpec-Learn": "0"}


@dataclass(frozen=True, slots=True)
class Repair:
    """A task before and after: the tests that pass by name, the agent's outputs, the files, the time.

    ``failure`` says why the agent did not come to an end.
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
        """Every test that there was passes."""
        return set(self.after) == set(self.before) and all(self.after.values())

    def is_like(self, other: Repair) -> bool:
        """The same was said, and the same was done."""
        return self.outputs == other.outputs and self.files == other.files


def model_at(url: str, name: str, key: str, *, speculate: bool = True) -> LLM:
    """The model, greedy."""
    return LLM(
        model=f"openai/{name}",
        base_url=url,
        api_key=key,
        temperature=0.0,
        num_retries=1,
        extra_headers=None if speculate else OFF,
    )


def repair(task: Task, llm: LLM) -> Repair:
    """Have an agent repair it, in a workspace of its own."""
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
    """What the agent wrote, call by call."""
    for event in events:
        if isinstance(event, ActionEvent):
            yield f"{event.tool_name} {event.tool_call.arguments}"
        elif isinstance(event, MessageEvent) and event.source == "agent":
            yield str(event.llm_message.content)


def _files(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.py"))}
