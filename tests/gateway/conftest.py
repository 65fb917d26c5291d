from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.gateway.support.live import serving_engine
from tests.gateway.support.scripted import ScriptedEngine


@pytest.fixture(scope="module")
def engine() -> ScriptedEngine:
    return ScriptedEngine()


@pytest.fixture(scope="module")
def url(engine: ScriptedEngine) -> Iterator[str]:
    with serving_engine(engine) as root:
        yield root
