"""What the parts came to: a summary, the bars, and one file that parts are added to as they are measured."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from operator import ge, le, lt
from pathlib import Path
from typing import Any

from rich.table import Table

from agentspec.benchmarks.report import rounded, verdict
from agentspec.errors import ConfigError

Parts = Mapping[str, Mapping[str, Any]]  # by name: figures and their provenance

COMPARED = ("lossless", "sql", "soak")
SIGNS = {ge: "at least", le: "at most", lt: "under"}


@dataclass(frozen=True, slots=True)
class Bar:
    """A figure of a part, and what is good enough.

    Attributes:
        meets: compares the figure with the limit.
        is_summed: whether the summary has it.
    """

    label: str
    part: str
    figure: str
    meets: Any
    limit: float
    is_summed: bool = True

    def value(self, parts: Parts) -> Any:
        """The figure; None if it was not measured."""
        return parts.get(self.part, {}).get(self.figure)

    def passes(self, parts: Parts) -> bool | None:
        """Whether the bar is met; None if it was not measured."""
        value = self.value(parts)
        return None if value is None else bool(self.meets(value, self.limit))


BARS = (
    Bar("prompts compared", "lossless", "num_prompts", ge, 200, is_summed=False),
    Bar("outputs that differ", "lossless", "num_different", le, 0, is_summed=False),
    Bar("preemptions forced", "lossless", "num_preemptions", ge, 1, is_summed=False),
    Bar("accepted per step, of suffix's", "sql", "accepted_per_step_gain_vs_suffix", ge, 1.15),
    Bar("wall time, of suffix's", "sql", "wall_vs_suffix", le, 1.0, is_summed=False),
    Bar("throughput, of none's, one at a time", "sql", "throughput_vs_none_c1", ge, 1.8),
    Bar("propose, suffix's time / ours", "propose", "propose_speedup_b64", ge, 8),
    Bar("propose, ms", "propose", "propose_ms_b64", lt, 1),
    Bar("soak: growth of memory", "soak", "soak_rss_growth", lt, 0.03),
    Bar("soak: outputs that differ", "soak", "num_different", le, 0, is_summed=False),
    Bar("soak: errors", "soak", "num_errors", le, 0, is_summed=False),
    Bar("restart, of warm acceptance", "warm", "warm_restart_acceptance", ge, 0.95),
)


def summary(parts: Parts) -> dict[str, Any]:
    """The figures people compare, None where a part was not measured."""
    compared = [parts[name]["outputs_identical"] for name in COMPARED if name in parts]
    return {
        "outputs_identical": all(compared) if compared else None,
        **{bar.figure: bar.value(parts) for bar in BARS if bar.is_summed},
    }


def table(parts: Parts) -> Table:
    """One row per bar."""
    result = Table(title="vLLM with the plugin", title_justify="left")
    for heading in ("", "measured", "bar", ""):
        result.add_column(heading, justify="left" if not heading else "right", no_wrap=True)
    for bar in BARS:
        value = bar.value(parts)
        shown = "" if value is None else f"{rounded(value)}"
        result.add_row(bar.label, shown, f"{SIGNS[bar.meets]} {bar.limit:g}", verdict(bar.passes(parts)))
    return result


def json_line(parts: Parts) -> str:
    """Everything; each part says where it was measured."""
    return json.dumps({"summary": rounded(summary(parts)), "parts": rounded(parts)})


def parts_in(path: Path | None) -> dict[str, Any]:
    """What was measured earlier; nothing without a file.

    Raises:
        ConfigError: the file is none of this benchmark's.
    """
    if path is None or not path.exists():
        return {}
    try:
        found: dict[str, Any] = json.loads(path.read_text())["parts"]
    except (ValueError, KeyError, TypeError):
        raise ConfigError(f"{str(path)!r} was not written by bench vllm: name another file") from None
    return found
