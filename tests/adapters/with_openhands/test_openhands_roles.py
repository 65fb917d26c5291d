"""OpenHands agents with all their optional parts. A call's text names its expected stage."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from openhands.sdk import LLM, Conversation
from openhands.sdk.conversation.goal import GoalController
from openhands.tools.file_editor import FileEditorTool
from openhands.tools.task import TaskToolSet
from openhands.tools.terminal import TerminalTool

from tests.adapters.with_openhands.acting import (
    DelegateTool,
    ModelAnalyzer,
    ModelCritic,
    agent_of,
    condenser_of,
    hooks,
    run_of,
    wrong,
)

Models = Callable[..., LLM]

NUM_RUNS = 32
WAYS: dict[str, dict[str, Any]] = {
    "chat": {},
    "responses": {"api_mode": "responses"},
    "stream": {"stream": True},
}


def file_calls(folder: Path) -> list[Any]:
    """Return calls that create, read and change a note."""
    note = str(folder / "RUN.txt")
    return [
        ("file_editor", {"command": "create", "path": note, "file_text": "RUN\n"}),
        ("file_editor", {"command": "view", "path": note}),
        ("file_editor", {"command": "str_replace", "path": note, "old_str": "RUN", "new_str": "done"}),
    ]


def task(name: str) -> Any:
    """Return a call that starts a sub-agent."""
    return "task", {"prompt": f"See to RUN, {name}.", "subagent_type": name, "description": name}


def conversation_of(agent: Any, folder: Path, question: str, **fields: Any) -> Any:
    conversation = Conversation(agent=agent, workspace=folder, visualizer=None, **fields)
    conversation.send_message(question)
    return conversation


def sessions(engine: Any) -> dict[str, set[str]]:
    """Return the runs of each session."""
    found: dict[str, set[str]] = {}
    for request in engine.requests:
        found.setdefault(request.tags.session, set()).add(run_of(request))
    return found


@pytest.mark.parametrize("is_async", [False, True], ids=["run", "arun"])
@pytest.mark.parametrize("way", WAYS)
def test_every_role(
    model: Models, engine: Any, tmp_path: Path, instrumented: None, way: str, is_async: bool
) -> None:
    """Use one model for all roles, so that its usage id gives no hint."""
    terminal = ("terminal", {"command": "cat run-1.txt", "security_risk": "LOW"})
    calls = [*file_calls(tmp_path), terminal, ("lookup", {"question": "RUN"}), task("scout"), task("cook")]
    engine.reset(*calls)
    llm, plain = model(**WAYS[way]), model()
    tools = (TerminalTool.name, FileEditorTool.name, TaskToolSet.name, "lookup")
    agent = agent_of(llm, *tools, condenser=condenser_of(plain), critic=ModelCritic(llm=plain))
    on_tokens: Any = {"token_callbacks": [lambda chunk: None]} if llm.stream else {}
    conversation = conversation_of(agent, tmp_path, "Do run-1.", hook_config=hooks(), **on_tokens)
    conversation.set_security_analyzer(ModelAnalyzer(llm=plain))
    if is_async:
        asyncio.run(conversation.arun())
    else:
        conversation.run()
    conversation.generate_title(plain)
    GoalController("run-1", plain).on_run_finished(conversation.state.events)
    conversation.close()
    assert (tmp_path / "run-1.txt").read_text() == "done\n"
    assert wrong(engine) == []
    assert Counter(request.tags.stage.name.removeprefix("repair/") for request in engine.requests) == {
        "agent": len(calls) + 1,
        "agent/condenser": 2,
        "agent/critic": 1,
        "agent/security": len(calls),
        "agent/title": 1,
        "agent/prompt-hook/network": 1,
        "agent/agent-hook/last": 1,
        "agent/lookup": 1,
        "scout": 1,
        "cook": 1,
        "goal-judge": 1,
    }
    of_conversation = [request for request in engine.requests if request.tags.stage.path[-1] != "goal-judge"]
    assert {request.tags.session for request in of_conversation} == {str(conversation.id)}


async def test_runs_side_by_side(model: Models, engine: Any, tmp_path: Path, instrumented: None) -> None:
    engine.reset(*file_calls(tmp_path)[:2], task("scout"), task("cook"), ("lookup", {"question": "RUN"}))

    async def one(number: int) -> None:
        agent = agent_of(
            model(), FileEditorTool.name, TaskToolSet.name, "lookup", condenser=condenser_of(model())
        )
        conversation = conversation_of(agent, tmp_path, f"Do run-{number}.")
        await conversation.arun()
        await asyncio.to_thread(conversation.close)

    await asyncio.gather(*(one(number) for number in range(NUM_RUNS)))
    assert wrong(engine) == []
    assert sorted(sessions(engine).values(), key=min) == sorted(
        ({f"run-{number}"} for number in range(NUM_RUNS)), key=min
    )
    stages = Counter(request.tags.stage.name for request in engine.requests)
    assert stages["repair/agent"] == 6 * NUM_RUNS
    assert stages["repair/scout"] == stages["repair/cook"] == stages["repair/agent/lookup"] == NUM_RUNS


def test_threads_and_delegates(model: Models, engine: Any, tmp_path: Path, instrumented: None) -> None:
    """Run sub-agents in threads of their own, in conversations that run in threads of a pool."""
    spawn = {"command": "spawn", "ids": ["a", "b"], "agent_types": ["scout", "cook"]}
    tell = {"command": "delegate", "tasks": {"a": "Look around for RUN.", "b": "Cook for RUN."}}
    engine.reset((DelegateTool.name, spawn), (DelegateTool.name, tell))

    def one(number: int) -> None:
        conversation = conversation_of(agent_of(model(), DelegateTool.name), tmp_path, f"Do run-{number}.")
        conversation.run()
        conversation.close()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(one, range(4)))
    assert wrong(engine) == []
    assert all(len(runs) == 1 for runs in sessions(engine).values())
    assert Counter(request.tags.stage.name for request in engine.requests) == {
        "repair/agent": 12,
        "repair/scout": 4,
        "repair/cook": 4,
    }
