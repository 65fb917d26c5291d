"""``python -m benchmarks gateway``: runs one part after the other, and updates the file after each."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

from agentspec.reporting import plots
from agentspec.reporting.provenance import provenance
from agentspec.reporting.report import announcer, make_room_for
from benchmarks.gateway import plot
from benchmarks.gateway.parts import MEASURES
from benchmarks.gateway.quiet import Quiet
from benchmarks.gateway.report import CARD
from benchmarks.gateway.sides import Setup
from benchmarks.gateway.sizes import Sizes

PACKAGES = ("uvloop", "httptools", "uvicorn", "starlette", "httpx")
PEER_PACKAGES = ("litellm", "uvicorn", "uvloop", "fastapi", "aiohttp", "httpx")


def run(
    names: Sequence[str],
    sizes: Sizes,
    litellm: Path | None,
    json_path: Path | None,
    plot_path: Path | None,
    patience_s: float = 0.0,
) -> int:
    """Measure; print progress on stderr, then the table and the JSON line; return the exit status.

    Parts in the file that are not measured now stay unchanged. Up to ``patience_s`` seconds in all are spent
    on waiting for a quiet machine.

    Raises:
        AgentSpecError: a process did not start, or failed; earlier parts are in the file.
    """
    plots.check(plot_path)
    announce = announcer()
    make_room_for(plot_path)
    if litellm is None:
        announce("LiteLLM is not installed, so it is not measured: make bench-gateway")
    where, quiet = _provenance(sizes, litellm), Quiet(patience_s)
    with tempfile.TemporaryDirectory() as folder:
        setup = Setup(litellm, Path(folder), quiet)
        measured = CARD.run(
            names, lambda name: MEASURES[name](setup, sizes, announce), lambda: where, json_path
        )
    announce("done")
    if plot_path and "latency" in measured:
        plot.draw(measured["latency"], plot_path)
    CARD.publish(measured, json_path)
    return 0


def _provenance(sizes: Sizes, litellm: Path | None) -> dict[str, object]:
    return {
        **provenance(),
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
