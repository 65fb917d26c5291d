from __future__ import annotations

import pytest

from tests.adapters.support.copied import blocks, run

STAGES = (["agentic_sql/extract", "agentic_sql/combine"], ["agentic_sql/classify"])


@pytest.mark.parametrize(
    ("block", "stages"), list(zip(blocks("LangChain and LangGraph"), STAGES, strict=True))
)
def test_the_blocks_run(block: str, stages: list[str]) -> None:
    names, found = run(block)
    assert found == stages
    assert names.get("answer", {}).get("sql", "Hello, wörld!") == "Hello, wörld!"
