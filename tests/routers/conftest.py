"""Fixtures: real routers between a real gateway and real engines. ``make test-routers`` installs them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.routers.support.engines import EngineProcess
from tests.routers.support.processes import answers, wait_until
from tests.routers.support.programs import ROUTERS, Router, routed
from tests.support.ports import reserved_port

NUM_ENGINES = 3


def installed(name: str) -> Any:
    """Return the router as a parameter of tests, which are skipped if it is not installed."""
    is_missing = ROUTERS[name].path() is None
    reason = f"{name} is not installed: see tests/routers/requirements.txt"
    return pytest.param(ROUTERS[name], id=name, marks=pytest.mark.skipif(is_missing, reason=reason))


@pytest.fixture(scope="module", params=map(installed, ROUTERS))
def router(request: pytest.FixtureRequest) -> Router:
    """Return each router in turn."""
    router: Router = request.param
    return router


@pytest.fixture(scope="session")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[EngineProcess]]:
    """Yield running engines. A test that kills one starts it again."""
    logs = tmp_path_factory.mktemp("engines")
    with ExitStack() as stack:
        started = []
        for number in range(NUM_ENGINES):
            engine = EngineProcess(stack.enter_context(reserved_port()), logs / f"engine-{number}.log")
            stack.callback(engine.close)
            engine.start(waits=False)  # side by side
            started.append(engine)
        assert wait_until(lambda: all(answers(engine.client, "/health") for engine in started))
        yield started


@pytest.fixture(scope="module")
def gateway(
    router: Router, engines: list[EngineProcess], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[httpx.Client]:
    """Yield a client of the gateway before the router before the engines."""
    folder = tmp_path_factory.mktemp(Path(router.program).name)
    with routed(router, [engine.url for engine in engines], folder) as client:
        yield client
