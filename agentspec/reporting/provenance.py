"""Provenance of figures: versions, commit, machine, time."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import agentspec


def provenance() -> dict[str, object]:
    """Return the facts needed to judge or repeat a measurement, without the names of machine or user."""
    return {
        "versions": {
            "agentspec": agentspec.__version__,
            "python": platform.python_version(),
            **{package: version(package) for package in ("numpy", "mistral-common")},
        },
        "commit": _git("rev-parse", "HEAD"),
        "dirty": None if (status := _git("status", "--porcelain")) is None else bool(status),
        "machine": {
            "cpu": _cpu_model(),
            "architecture": platform.machine(),
            "cores": os.cpu_count(),
            "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
            "system": f"{platform.system()} {platform.release()}",
            "load_average": [round(load, 2) for load in os.getloadavg()],
        },
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _git(*arguments: str) -> str | None:
    """Return git's output for the checkout of this file, or None if it is not in a checkout."""
    command = ["git", "-C", str(Path(__file__).parent), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def _cpu_model() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)
