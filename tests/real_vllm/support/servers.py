"""Servers of the scenarios: alike, with drafts and without."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from agentspec.vllm_plugin.launch import RUNNER_VARIABLE
from benchmarks.vllm.server import Server
from benchmarks.vllm.speculators import NONE, Speculator, bundled_on_cpu

PRICE = 0.05  # close to 0: drafts must not depend on the machine's load
MAX_MODEL_LEN = 1024
BLOCK = 32  # tokens of a block of vLLM's cache
FLAGS = ("--max-model-len", str(MAX_MODEL_LEN), "--block-size", str(BLOCK), "--enable-prompt-embeds")
V1_PYTHON = Path(sys.prefix).parent / ".venv-vllm" / "bin" / "python"
ENVIRONMENT = {"VLLM_SERVER_DEV_MODE": "1"}  # for /sleep


def ours(**settings: Any) -> Speculator:
    """Return the plugin with these settings."""
    return Speculator("agentspec", num_tokens=15, settings={"price": PRICE, **settings})


@contextmanager
def reference(folder: Path) -> Iterator[Server]:
    """Run a server without speculation. Its model runner is V1: V2's kernels are interpreted here."""
    environment = {**ENVIRONMENT, RUNNER_VARIABLE: "0", "TRITON_INTERPRET": "0"}
    engine = replace(bundled_on_cpu(), python=str(V1_PYTHON))
    with engine.serving(replace(NONE, environment=environment), folder, *FLAGS) as server:
        yield server


@contextmanager
def serving(
    speculator: Speculator, folder: Path, *flags: str, environment: Mapping[str, str] | None = None
) -> Iterator[Server]:
    """Run a server with the flags of all scenarios and these."""
    environment = {**ENVIRONMENT, **speculator.environment, **(environment or {})}
    speculator = replace(speculator, environment=environment)
    with bundled_on_cpu().serving(speculator, folder, *FLAGS, *flags) as server:
        yield server
