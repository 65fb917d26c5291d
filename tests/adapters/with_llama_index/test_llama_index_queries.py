"""Query engines with a stage for each part."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from llama_index.core import Document, SummaryIndex
from llama_index.core.selectors import LLMSingleSelector
from llama_index.core.tools import ToolMetadata

from tests.adapters.support.told import sessions

Stages = Callable[[], list[str]]
STAGE = "flow/RetrieverQueryEngine/CompactAndRefine"
pytestmark = [
    pytest.mark.usefixtures("instrumented"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # LlamaIndex uses deprecated pydantic names
]


def query_engine_of(llm: Any, **more: Any) -> Any:
    return SummaryIndex.from_documents([Document(text="Bees fly.")]).as_query_engine(llm=llm, **more)


async def test_queries_side_by_side(llm: Any, engine: Any, stages: Stages) -> None:
    query_engine = query_engine_of(llm)
    await asyncio.gather(*(query_engine.aquery("What flies?") for _ in range(32)))
    assert stages() == [STAGE] * 32
    assert len(sessions(engine)) == 32


def test_threads(llm: Any, stages: Stages) -> None:
    query_engine = query_engine_of(llm)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(query_engine.query, ["What flies?"] * 32))
    assert stages() == [STAGE] * 32


async def test_streams_that_are_read_later(llm: Any, stages: Stages) -> None:
    answer = query_engine_of(llm, streaming=True).query("What flies?")
    later = await query_engine_of(llm, streaming=True).aquery("What flies?")
    llm.complete("hi")
    assert "".join(answer.response_gen) == "Hello, wörld!"
    assert [part async for part in later.async_response_gen()]
    assert sorted(stages()) == ["flow", STAGE, STAGE]


@pytest.mark.parametrize("mode", ["tree_summarize", "simple_summarize"])
def test_other_ways_to_an_answer(llm: Any, stages: Stages, mode: str) -> None:
    query_engine_of(llm, response_mode=mode).query("What flies?")
    assert stages() == [f"flow/RetrieverQueryEngine/{mode.title().replace('_', '')}"]


def test_a_selector(llm: Any, stages: Stages) -> None:
    choices = [ToolMetadata(name=name, description=name) for name in ("bees", "ants")]
    with pytest.raises(ValueError, match="JSON"):  # the engine's answer is no choice
        LLMSingleSelector.from_defaults(llm=llm).select(choices, query="What flies?")
    assert stages() == ["flow/LLMSingleSelector"]
