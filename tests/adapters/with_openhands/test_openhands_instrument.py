from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from openhands.sdk import LLM, Agent, Conversation, Message, TextContent
from openhands.sdk.agent import agent as agent_module
from openhands.sdk.conversation.impl.local_conversation import LocalConversation
from openhands.sdk.llm import llm as llm_module
from openhands.sdk.subagent.registry import AgentFactory, get_agent_factory

from agentspec.adapters.openai import stage
from agentspec.adapters.openhands import instrument
from agentspec.errors import StageError
from tests.adapters.support.copied import blocks, run
from tests.adapters.with_openhands.acting import agent_of, condenser_of, part_of

Models = Callable[..., LLM]
Stages = Callable[[], list[str]]

OWNERS = (llm_module, agent_module, LocalConversation, AgentFactory, Agent)


def replaced() -> list[Any]:
    """Return the current state of every object that may be patched."""
    return [dict(vars(owner)) for owner in OWNERS]


def conversation_of(llm: LLM, folder: Path, **fields: Any) -> Any:
    conversation = Conversation(agent=agent_of(llm, **fields), workspace=folder, visualizer=None)
    conversation.send_message("Do run-1.")
    return conversation


def ask(llm: LLM) -> None:
    llm.completion([Message(role="user", content=[TextContent(text="Look this up: run-1")])])


def test_it_can_be_undone_in_any_order(model: Models, engine: Any, stages: Stages, tmp_path: Path) -> None:
    before = replaced()
    first, last = instrument(workflow="first"), instrument(workflow="last")
    conversations = [conversation_of(model(), tmp_path) for _ in range(3)]
    conversations[0].run()
    first()
    first()
    conversations[1].run()
    last()
    conversations[2].run()
    assert stages() == ["last/agent", "last/agent", "default"]
    assert replaced() == before


def test_a_bad_workflow_changes_nothing() -> None:
    before = replaced()
    with pytest.raises(StageError, match="a//b"):
        instrument(workflow="a//b")
    assert replaced() == before


def test_a_conversation_may_be_older(model: Models, engine: Any, stages: Stages, tmp_path: Path) -> None:
    conversation = conversation_of(model(usage_id="coder"), tmp_path)
    undo = instrument()
    conversation.run()
    undo()
    assert stages() == ["coder"]
    assert engine.requests[0].tags.session == str(conversation.id)


def test_a_fork_is_part_of_its_conversation(
    model: Models, engine: Any, stages: Stages, tmp_path: Path, instrumented: None
) -> None:
    conversation = conversation_of(model(usage_id="coder"), tmp_path)
    conversation.run()
    fork = conversation.fork()
    fork.send_message("Go on.")
    fork.run()
    fork.ask_agent("What is run-1?")
    assert stages() == ["repair/coder", "repair/coder", "repair/coder/ask-agent-llm"]
    assert {request.tags.session for request in engine.requests} == {str(conversation.id)}


def test_what_a_model_is_there_for(model: Models, engine: Any, stages: Stages, instrumented: None) -> None:
    """Outside conversations only the usage id names the role; ids are not roles."""
    for usage_id in ("default", "judge", "classifier:gpt", "profile:gpt", "judge-3f2504e04f8911d3"):
        ask(model(usage_id=usage_id))
    assert stages() == ["repair", "repair/judge", "repair/classifier/gpt", "repair", "repair/judge"]


def test_a_block_names_the_stage(
    model: Models, engine: Any, stages: Stages, tmp_path: Path, instrumented: None
) -> None:
    conversation = conversation_of(model(), tmp_path)
    with stage("mine"):
        conversation.run()
    with stage("mine", session="run-1"):
        ask(model())
    assert stages() == ["repair/mine", "repair/mine"]
    assert [request.tags.session for request in engine.requests] == [str(conversation.id), "run-1"]


def test_headers_by_hand_stay(
    model: Models, engine: Any, stages: Stages, tmp_path: Path, instrumented: None
) -> None:
    conversation_of(model(extra_headers={"X-AgentSpec-Stage": "mine"}), tmp_path).run()
    assert stages() == ["mine"]


def test_a_sub_agent_has_a_condenser_of_its_own(
    model: Models, engine: Any, tmp_path: Path, instrumented: None
) -> None:
    engine.reset(*[("think", {"thought": "run-1"})] * 5)
    scout = get_agent_factory("scout").factory_func(model())
    agent = scout.model_copy(
        update={"condenser": condenser_of(model()), "agent_context": None}  # plays the main agent's part
    )
    conversation = Conversation(agent=agent, workspace=tmp_path, visualizer=None, stuck_detection=False)
    conversation.send_message("Do run-1.")
    conversation.run()
    told = {(part_of(request), request.tags.stage.name) for request in engine.requests}
    assert told == {("agent", "repair/scout"), ("agent/condenser", "repair/scout/condenser")}


def test_an_agent_that_knows_its_name_is_the_same(model: Models, instrumented: None) -> None:
    known = get_agent_factory("scout").factory_func(model())
    copied = known.model_copy(update={"llm": known.llm.model_copy(update={"stream": False})})
    unknown = known.model_copy()
    assert vars(copied)["_agentspec_name"] == vars(unknown).pop("_agentspec_name") == "scout"
    assert unknown == known
    assert unknown.model_dump_json() == known.model_dump_json()


def test_no_code_at_all(
    url: str, engine: Any, stages: Stages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run a program that makes its model from the environment. OpenHands sends the conversation's id."""
    monkeypatch.setenv("LLM_MODEL", "openai/scripted")
    monkeypatch.setenv("LLM_BASE_URL", url)
    monkeypatch.setenv("LLM_API_KEY", "none")
    untagged = conversation_of(LLM.load_from_env(), tmp_path)
    untagged.run()
    monkeypatch.setenv("LLM_EXTRA_HEADERS", '{"X-AgentSpec-Stage": "repair"}')
    conversation_of(LLM.load_from_env(), tmp_path).run()
    assert stages() == ["default", "repair"]
    assert engine.requests[0].tags.session == str(untagged.id)


def test_the_block_to_copy_runs() -> None:
    (block,) = blocks("OpenHands")
    names, stages = run(block)
    assert stages == ["repair/agent"]
    assert names["conversation"].state.execution_status == "finished"
