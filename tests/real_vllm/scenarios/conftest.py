"""Scenarios of either model runner: of whichever the environment has (``make test-vllm-v1``, ``-v2``)."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(scope="session")
def references(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """Return what each probe finds without speculation, and 2,000 samples, from one server."""
    from benchmarks.vllm.speculators import NONE
    from tests.real_vllm.support.probes import NUM_SAMPLES, PROBES, samples
    from tests.real_vllm.support.servers import serving

    with serving(NONE, tmp_path_factory.mktemp("none")) as server:
        found = {name: probe(server) for name, probe in PROBES.items()}
        return found | {"samples": samples(server, NUM_SAMPLES, NUM_SAMPLES)}
