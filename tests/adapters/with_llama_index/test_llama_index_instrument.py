from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.response_synthesizers import BaseSynthesizer
from workflows.runtime.types import step_function

from agentspec.adapters.llama_index import instrument
from agentspec.errors import StageError
from tests.adapters.support.copied import blocks, run

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # from pydantic
OWNERS: tuple[Any, ...] = (step_function, BaseQueryEngine, BaseSynthesizer)


async def test_it_can_be_undone_in_any_order(llm: Any, stages: Callable[[], list[str]]) -> None:
    before = [dict(vars(owner)) for owner in OWNERS]
    agent = FunctionAgent(name="writer", llm=llm)
    first, last = instrument(workflow="first"), instrument(workflow="last")
    first()
    first()
    await agent.run("Work.")
    last()
    await agent.run("Work.")
    assert stages() == ["last/writer", "default"]
    assert [dict(vars(owner)) for owner in OWNERS] == before


def test_a_bad_workflow_changes_nothing() -> None:
    before = [dict(vars(owner)) for owner in OWNERS]
    with pytest.raises(StageError, match="a//b"):
        instrument(workflow="a//b")
    assert [dict(vars(owner)) for owner in OWNERS] == before


def test_the_block_runs() -> None:
    (block,) = blocks("LlamaIndex")
    names, stages = run(block)
    assert stages == ["newsroom/chief", "newsroom/writer"]
    assert str(names["answer"]) == "Hello, wörld!"
