"""Real vLLM with the bundled model, on the CPU. Without vLLM, no tests are collected here.

``make test-vllm`` runs them in a separate environment.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from agentspec.vllm_plugin.checks import installed_version

if installed_version() is None:
    collect_ignore_glob = ["test_*.py", "scenarios/*"]


@pytest.fixture
def serving(tmp_path: Path) -> Callable[..., AbstractContextManager[Any]]:
    """Return a function for ``with serving(speculator, *flags) as server``: vLLM runs within the block."""
    from benchmarks.vllm.speculators import OURS, Speculator, bundled_on_cpu

    def serving(speculator: Speculator = OURS, *flags: str) -> AbstractContextManager[Any]:
        return bundled_on_cpu().serving(speculator, tmp_path, *flags)

    return serving
