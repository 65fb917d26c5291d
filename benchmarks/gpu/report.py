"""The figures of all variants side by side, against vLLM without speculation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from benchmarks.gpu.variants import PLAIN

Found = Mapping[str, Mapping[str, Any]]  # what a variant's process wrote, by name of the variant
RATE = "tokens_per_s"
COLUMNS = {
    "tok/s": RATE,
    "tok/step": "tokens_per_step",
    "step ms": "step_ms",
    "decode ms": "decode_step_ms",
    "accept": "acceptance_rate",
    "graphs": "full_graphs",
}


def summary(found: Found) -> dict[str, Any]:
    """Return tokens/s against the plain variant, and if all outputs are as recorded."""
    loads = [load for one in found.values() for load in one.get("loads", {}).values()]
    return {
        "outputs_as_recorded": all(load["num_different"] == 0 for load in loads) if loads else None,
        **{
            f"{name}_vs_plain_c{clients}": load[RATE] / plain[RATE]
            for name, one in found.items()
            if name != PLAIN
            for clients, load in _measured(one).items()
            if (plain := _measured(found.get(PLAIN, {})).get(clients))
        },
    }


def table(found: Found) -> Table:
    """Return a row per variant and number of clients."""
    result = Table(title="recorded agent calls", title_justify="left")
    for heading in ("", "runner"):
        result.add_column(heading, no_wrap=True)
    for heading in ("clients", *COLUMNS, "TTFT", "TPOT"):
        result.add_column(heading, justify="right", no_wrap=True)
    for name, one in found.items():
        engine = one.get("engine", {})
        way = f"{engine.get('model_runner', '')} {'async' if engine.get('async_scheduling') else 'sync'}"
        for clients, load in _measured(one).items():
            shown = [load[figure] for figure in COLUMNS.values()]
            latencies = (load["ttft_ms"]["p50"], load["tpot_ms"]["p50"])
            result.add_row(name, way, clients, *map(_shown, [*shown, *latencies]))
    return result


def notes(found: Found) -> list[str]:
    """Return lines about variants that failed, and loads that did not end."""
    failed = [
        f"{name} is not complete: {one['error'].splitlines()[0]}"
        for name, one in found.items()
        if one.get("error")
    ]
    cut = [
        f"{name}, {clients} clients: the time ran out after {load['num_calls']} calls"
        for name, one in found.items()
        for clients, load in one.get("loads", {}).items()
        if not load["is_whole"]
    ]
    return failed + cut


def _measured(one: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the loads whose name is a number of clients: others only give something to learn from."""
    return {name: load for name, load in one.get("loads", {}).items() if name.isdecimal()}


def _shown(value: float | None) -> str:
    return "" if value is None else f"{value:.0f}" if value >= 100 else f"{value:.3g}"
