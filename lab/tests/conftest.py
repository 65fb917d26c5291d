"""Fixtures that the tests of the product have, too."""

from __future__ import annotations

from tests.benchmarks.conftest import tiny, traces
from tests.conftest import checkpoint, free_port, llama_checkpoint

__all__ = ["checkpoint", "free_port", "llama_checkpoint", "tiny", "traces"]
