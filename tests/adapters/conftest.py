"""Real frameworks before our real gateway. Those that are not installed have no tests here.

``make test-adapters`` runs each framework's, in an environment of its own.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import pytest

from tests.adapters.support.obliging import ObligingEngine
from tests.gateway.support.live import serving_engine


def is_missing(requirements: Path) -> bool:
    """The first package that they name is not installed."""
    name, _, _ = requirements.read_text(encoding="utf-8").partition("==")
    return not list(distributions(name=name))


collect_ignore = [
    str(requirements.parent)
    for requirements in Path(__file__).parent.glob("with_*/requirements.txt")
    if is_missing(requirements)
]


@pytest.fixture(scope="session", autouse=True)
def _collected() -> Iterator[None]:
    """Some frameworks close no connection: they go with the tests that may leave them open."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Any, str]]:
    """An engine and the base URL of the gateway in front of it."""
    engine = ObligingEngine()
    with serving_engine(engine) as root:
        yield engine, f"{root}/v1"


@pytest.fixture
def engine(served: tuple[Any, str]) -> Any:
    """It has not been asked anything."""
    engine, _ = served
    engine.requests.clear()
    return engine


@pytest.fixture
def url(served: tuple[Any, str]) -> str:
    """Where the engine is asked."""
    return served[1]


@pytest.fixture
def stages(engine: Any) -> Callable[[], list[str]]:
    """The stages of the calls so far, in order."""
    return lambda: [request.stage.name for request in engine.requests]
