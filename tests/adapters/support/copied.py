"""Run the code blocks of docs/adapters.md as they are.

Each block must print the output that the page shows.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from agentspec.generation import ModelCard
from tests.adapters.support.obliging import ObligingEngine
from tests.gateway.support.live import serving_engine

PAGE = Path(__file__).parents[3] / "docs" / "adapters.md"
URL = "http://127.0.0.1:8000"
SESSION = re.compile(r"(?<=, session )\S+")


def blocks(heading: str) -> list[str]:
    """Return the Python blocks below a heading of the second level."""
    _, _, section = PAGE.read_text(encoding="utf-8").partition(f"\n## {heading}\n")
    assert section, f"no section {heading!r} in {PAGE}"
    return re.findall(r"```python\n(.*?)```", section.partition("\n## ")[0], flags=re.DOTALL)


def output_of(block: str) -> str:
    """Return the output that the page shows below a block, including the lines of ``logging``."""
    _, _, below = PAGE.read_text(encoding="utf-8").partition(f"```python\n{block}```\n\n```text\n")
    return below.partition("```")[0]


def run(block: str) -> tuple[dict[str, Any], list[str]]:
    """Run a block against a gateway and compare its output with the page.

    Returns:
        the block's names, and the stages of its calls in order.
    """
    engine = ObligingEngine(model=ModelCard("agentspec-sql", 4096, 1_700_000_000))
    names: dict[str, Any] = {"__name__": "__main__"}
    with serving_engine(engine) as root, logged_and_printed() as printed:
        exec(compile(block.replace(URL, root), str(PAGE), "exec"), names)
    shown = with_numbered_sessions(output_of(block), block)
    assert with_numbered_sessions(printed.getvalue(), block) == shown
    return names, [request.tags.stage.name for request in engine.requests]


@contextmanager
def logged_and_printed() -> Iterator[StringIO]:
    """Capture standard output and the adapters' debug log lines, in order."""
    printed, logger = StringIO(), logging.getLogger("agentspec.adapters")
    handler, level = logging.StreamHandler(printed), logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        with redirect_stdout(printed):
            yield printed
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def with_numbered_sessions(output: str, block: str) -> str:
    """Number the sessions that the block does not name: the first is ``#1``, the next ``#2``."""
    numbers: dict[str, str] = {}

    def numbered(found: re.Match[str]) -> str:
        return found[0] if found[0] in block else numbers.setdefault(found[0], f"#{len(numbers) + 1}")

    return SESSION.sub(numbered, output)
