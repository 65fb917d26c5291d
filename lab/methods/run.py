"""``python -m lab methods``: one workload after the other; the file is updated after each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version

from agentspec.reporting.report import Outputs
from lab.methods.measure import measure
from lab.methods.report import CARD
from lab.methods.sizes import Sizes
from lab.methods.workloads import Places

PACKAGES = ("torch", "numpy")


def run(names: Sequence[str], sizes: Sizes, places: Places, outputs: Outputs) -> int:
    """Measure, update the file after each workload, print the report, and return the exit status.

    Raises:
        AgentSpecError: a requirement is missing, or a head can't be loaded. The file has the
            earlier workloads.
    """
    places.check(names)
    origin = {"packages": {name: version(name) for name in PACKAGES}, "sizes": asdict(sizes)}
    return CARD.run(
        names, lambda name, announce: measure(name, places, sizes, announce), lambda: origin, outputs
    )
