"""What docs/adapters.md says to copy, as it stands there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from live import serving_engine
from obliging import ObligingEngine

from agentspec.generation import ModelCard

PAGE = Path(__file__).parents[2] / "docs" / "adapters.md"
URL = "http://127.0.0.1:8000"
STAGES = (["agentic_sql/extract", "agentic_sql/combine"], ["agentic_sql/classify"])
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)


@pytest.mark.parametrize(("block", "stages"), list(zip(BLOCKS, STAGES, strict=True)))
def test_the_blocks_run(block: str, stages: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    engine = ObligingEngine(model=ModelCard("agentspec-sql", 4096, 1_700_000_000))
    names: dict[str, Any] = {"__name__": "__main__"}
    with serving_engine(engine) as root:
        exec(compile(block.replace(URL, root), str(PAGE), "exec"), names)
    assert [request.stage.name for request in engine.requests] == stages
    assert names.get("answer", {}).get("sql", "Hello, wörld!") == "Hello, wörld!"
    assert capsys.readouterr().out == ("" if "answer" in names else "2.5 tokens per step\n")
