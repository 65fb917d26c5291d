"""The instruction set extensions that the native core uses. They are fixed when it is compiled."""

from __future__ import annotations

import platform
from collections.abc import Sequence

from agentspec._native import CPU_FEATURES
from agentspec.doctor.finding import Finding, ok, warning

# what every processor of an architecture has, by system where systems differ
BASELINES = {
    ("x86_64", ""): {"sse2"},
    ("aarch64", ""): {"neon"},
    ("arm64", "Darwin"): {"neon", "lse", "dotprod"},  # an M1
}


def check_cpu_features(features: Sequence[str] = CPU_FEATURES) -> Finding:
    """Report the extensions; warn if this build needs more than every processor of its architecture has."""
    shown = f"{', '.join(features) or 'none'}, compiled in and used; the core selects none at run time"
    machine = platform.machine()
    if surplus := beyond_baseline(features, machine, platform.system()):
        return warning(
            "CPU features",
            f"{shown}. Not every {machine} processor has {', '.join(surplus)}: don't copy this build to "
            "another machine, or build it without -march",
        )
    return ok("CPU features", shown)


def beyond_baseline(features: Sequence[str], machine: str, system: str) -> list[str]:
    """Return the ``features`` that not every processor of ``machine`` has; none if the machine is unknown."""
    baseline = BASELINES.get((machine, system), BASELINES.get((machine, ""), set(features)))
    return [name for name in features if name not in baseline]
