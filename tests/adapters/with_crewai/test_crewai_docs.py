from __future__ import annotations

import pytest

from tests.adapters.support.copied import blocks, run

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # CrewAI uses its own deprecated names
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
]


def test_the_block_runs() -> None:
    (block,) = blocks("CrewAI")
    names, stages = run(block)
    assert stages == ["newsroom/Researcher", "newsroom/Writer"]
    assert names["answer"].raw == "Hello, wörld!"
