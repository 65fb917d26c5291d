"""What the process of one variant is asked to measure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Job:
    """What one process measures.

    Attributes:
        model: a folder with ``config.json``.
        calls: a file of prepared calls.
        out: the file for the figures.
        flags: flags of vLLM that all variants have, then those of this one.
        settings: of the plugin.
        load_limit_s: seconds after which a load begins no more calls.
    """

    model: str
    calls: str
    out: str
    flags: tuple[str, ...]
    has_plugin: bool
    load_limit_s: float
    settings: Mapping[str, object]

    def write(self, path: Path) -> None:
        """Write the job for the process."""
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> Job:
        """Read a job."""
        found = json.loads(path.read_text())
        return cls(**{**found, "flags": tuple(found["flags"])})
