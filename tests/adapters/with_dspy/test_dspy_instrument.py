from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dspy
import pytest
from dspy._vendor.lm15.transports import StdlibAsyncTransport, StdlibTransport
from dspy.utils.parallelizer import ParallelExecutor

from agentspec.adapters.dspy import instrument
from agentspec.errors import StageError
from tests.adapters.support.copied import blocks, run

OWNERS: tuple[Any, ...] = (dspy.Module, ParallelExecutor, StdlibTransport, StdlibAsyncTransport)
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # from LiteLLM
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),  # from LiteLLM
    pytest.mark.filterwarnings("ignore:(Pydantic serializer warnings|Item '.*' on TypedDict)"),
]


def test_it_can_be_undone_in_any_order(model: Any, stages: Callable[[], list[str]]) -> None:
    before = [dict(vars(owner)) for owner in OWNERS]
    ask = dspy.Predict("topic -> answer")
    first, last = instrument(workflow="first"), instrument(workflow="last")
    first()
    first()
    ask(topic="bees")
    last()
    ask(topic="bees")
    assert stages() == ["last/topic -> answer", "default"]
    assert [dict(vars(owner)) for owner in OWNERS] == before


def test_a_bad_workflow_changes_nothing() -> None:
    before = [dict(vars(owner)) for owner in OWNERS]
    with pytest.raises(StageError, match="a//b"):
        instrument(workflow="a//b")
    assert [dict(vars(owner)) for owner in OWNERS] == before


def test_the_block_runs() -> None:
    (block,) = blocks("DSPy")
    names, stages = run(block)
    assert stages == ["newsroom/Article/facts", "newsroom/Article/draft"]
    assert names["answer"].article == "Why?"
