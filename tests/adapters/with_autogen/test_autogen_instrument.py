from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from autogen_agentchat.agents import AssistantAgent, BaseChatAgent
from autogen_core import BaseAgent

from agentspec.adapters.autogen import instrument
from agentspec.errors import StageError
from tests.adapters.support.copied import blocks, run

OWNERS = (BaseAgent, BaseChatAgent, AssistantAgent)


async def test_it_can_be_undone_in_any_order(model: Any, stages: Callable[[], list[str]]) -> None:
    before = [dict(vars(owner)) for owner in OWNERS]
    agent = AssistantAgent("writer", model)
    first, last = instrument(workflow="first"), instrument(workflow="last")
    first()
    first()
    await agent.run(task="Work.")
    last()
    await agent.run(task="Work.")
    assert stages() == ["last/writer", "default"]
    assert [dict(vars(owner)) for owner in OWNERS] == before


def test_a_bad_workflow_changes_nothing() -> None:
    before = [dict(vars(owner)) for owner in OWNERS]
    with pytest.raises(StageError, match="a//b"):
        instrument(workflow="a//b")
    assert [dict(vars(owner)) for owner in OWNERS] == before


def test_the_block_runs() -> None:
    (block,) = blocks("AutoGen")
    names, stages = run(block)
    assert stages == ["newsroom/researcher", "newsroom/writer"]
    assert names["answer"].messages[-1].content == "Hello, wörld!"
