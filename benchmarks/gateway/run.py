"""``python -m benchmarks gateway``: runs one part after the other, and updates the file after each."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

from agentspec.reporting.report import Outputs
from benchmarks.gateway import plot
from benchmarks.gateway.parts import MEASURES
from benchmarks.gateway.quiet import Quiet
from benchmarks.gateway.report import CARD
from benchmarks.gateway.sides import Setup
from benchmarks.gateway.sizes import Sizes
from benchmarks.harness.scorecard import Parts

PACKAGES = ("uvloop", "httptools", "uvicorn", "starlette", "httpx")
PEER_PACKAGES = ("litellm", "uvicorn", "uvloop", "fastapi", "aiohttp", "httpx")


def run(
    names: Sequence[str], sizes: Sizes, litellm: Path | None, outputs: Outputs, patience_s: float = 0.0
) -> int:
    """Measure, update the file after each part, print the report, and return the exit status.

    Up to ``patience_s`` seconds in all are spent on waiting for a quiet machine.

    Raises:
        AgentSpecError: a process did not start, or failed; earlier parts are in the file.
    """
    if litellm is None:
        print("LiteLLM is not installed, so it is not measured: make bench-gateway", file=sys.stderr)
    origin, quiet = _origin(sizes, litellm), Quiet(patience_s)
    with tempfile.TemporaryDirectory() as folder:
        setup = Setup(litellm, Path(folder), quiet)
        return CARD.run(
            names,
            lambda name, announce: MEASURES[name](setup, sizes, announce),
            lambda: origin,
            outputs,
            _plot,
        )


def _plot(parts: Parts, path: Path) -> None:
    if "latency" in parts:
        plot.draw(parts["latency"], path)


def _origin(sizes: Sizes, litellm: Path | None) -> dict[str, object]:
    return {
        "packages": {name: version(name) for name in PACKAGES},
        "peer_packages": _versions_beside(litellm) if litellm else None,
        "sizes": asdict(sizes),
    }


def _versions_beside(command: Path) -> dict[str, str]:
    """Return the versions of PEER_PACKAGES in the environment of a command."""
    code = f"from importlib.metadata import version; print(*map(version, {PEER_PACKAGES!r}))"
    python = command.parent / "python"
    told = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout
    return dict(zip(PEER_PACKAGES, told.split(), strict=True))
