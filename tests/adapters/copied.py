"""What docs/adapters.md says to copy, run as it stands there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from live import serving_engine
from obliging import ObligingEngine

from agentspec.generation import ModelCard

PAGE = Path(__file__).parents[2] / "docs" / "adapters.md"
URL = "http://127.0.0.1:8000"
PROMISE = re.compile(r"^# stages: (?P<stages>.+?)(?P<session>; one session)?$", re.MULTILINE)


def blocks(heading: str) -> list[str]:
    """The Python blocks below a heading of the second level."""
    _, _, section = PAGE.read_text(encoding="utf-8").partition(f"\n## {heading}\n")
    assert section, f"no section {heading!r} in {PAGE}"
    return re.findall(r"```python\n(.*?)```", section.partition("\n## ")[0], flags=re.DOTALL)


def run(block: str) -> tuple[dict[str, Any], list[str]]:
    """Run a block against a gateway, and compare its calls with the comment that says their stages.

    Returns:
        the block's names, and the stages of its calls in order.
    """
    engine = ObligingEngine(model=ModelCard("agentspec-sql", 4096, 1_700_000_000))
    names: dict[str, Any] = {"__name__": "__main__"}
    with serving_engine(engine) as root:
        exec(compile(block.replace(URL, root), str(PAGE), "exec"), names)
    stages = [request.stage.name for request in engine.requests]
    if promise := PROMISE.search(block):
        assert ", ".join(stages) == promise["stages"]
        sessions = {request.session for request in engine.requests}
        assert not promise["session"] or (len(sessions) == 1 and None not in sessions)
    return names, stages
