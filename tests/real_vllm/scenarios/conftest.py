"""Scenarios of either model runner: of whichever the environment has (``make test-vllm-v1``, ``-v2``)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the scenarios as slow with model runner V2, whose kernels are interpreted on a CPU."""
    if os.environ.get("VLLM_USE_V2_MODEL_RUNNER") == "1":
        for item in items:
            if item.path.parent == Path(__file__).parent:
                item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def references(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """Return what each probe finds without speculation, and 2,000 samples, from one server of runner V1."""
    from tests.real_vllm.support.probes import NUM_SAMPLES, PROBES, samples
    from tests.real_vllm.support.servers import reference

    with reference(tmp_path_factory.mktemp("none")) as server:
        found = {name: probe(server) for name, probe in PROBES.items()}
        return found | {"samples": samples(server, NUM_SAMPLES, NUM_SAMPLES)}
