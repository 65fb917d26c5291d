"""``python -m lab scale``: fleets of several sizes on paper, side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rich.table import Table

from agentspec.reporting.report import Report
from lab.scale.costs import Costs
from lab.scale.fleet import Fleet

Row = Callable[[Fleet], float]

ENGINE: Mapping[str, Row] = {
    "outputs/s of an engine": lambda fleet: fleet.outputs_per_replica,
    "answer's path, cores": lambda fleet: fleet.share_cores,
    "publisher, cores": lambda fleet: fleet.publisher_cores,
    "to learn all, cores": lambda fleet: fleet.learning_cores,
    "the same, recorded outputs, no decode steps": lambda fleet: fleet.learning_cores_alone,
    "learned with a quarter of a core": lambda fleet: fleet.learned,
    "tenant's tree holds, s": lambda fleet: fleet.tenant_tree_s,
    "all trees of the tenant hold, s": lambda fleet: fleet.trees_s,
    "memory of known outputs holds, s": lambda fleet: fleet.memory_s,
}
STORE: Mapping[str, Row] = {
    "outputs in a batch": lambda fleet: fleet.batch_outputs,
    "entries/s in": lambda fleet: fleet.entries_per_s,
    "MB/s in": lambda fleet: fleet.bytes_in_per_s / 1e6,
    "MB/s out, all learned": lambda fleet: fleet.bytes_out_per_s / 1e6,
    "MB/s out, a quarter of a core": lambda fleet: fleet.bytes_out_per_s * fleet.learned / 1e6,
    "server: writing, cores": lambda fleet: fleet.writing_cores,
    "server: reading, all learned": lambda fleet: fleet.reading_cores,
    "server: reading, a quarter of a core": lambda fleet: fleet.reading_cores * fleet.learned,
    "server: looks at tenants": lambda fleet: fleet.looking_cores,
    "log holds, s": lambda fleet: fleet.log_s,
    "snapshot holds, s": lambda fleet: fleet.snapshot_s,
    "to merge snapshots, cores": lambda fleet: fleet.snapshot_cores,
    "full logs, MiB": lambda fleet: fleet.store_bytes / 2**20,
}
SHARDED: Mapping[str, Row] = {
    "shards": lambda fleet: fleet.num_shards,
    "engines of a shard": lambda fleet: fleet.shard_replicas,
    "to learn all of a shard, cores": lambda fleet: fleet.learning_cores,
    "tenant's tree holds, s": lambda fleet: fleet.tenant_tree_s,
    "log holds, s": lambda fleet: fleet.log_s,
    "snapshot holds, s": lambda fleet: fleet.snapshot_s,
    "to merge snapshots, cores": lambda fleet: fleet.snapshot_cores,
    "MB/s out": lambda fleet: fleet.bytes_out_per_s / 1e6,
    "server: writing, cores": lambda fleet: fleet.writing_cores,
    "server: reading": lambda fleet: fleet.reading_cores,
    "full logs, MiB": lambda fleet: fleet.store_bytes / 2**20,
}


def make_report(results: Path, outputs_per_s: int, num_replicas: Sequence[int], num_tenants: int) -> Report:
    """Return the report.

    Raises:
        ConfigError: the results lack a cost.
    """
    costs = Costs.read(results)
    whole = [Fleet(costs, outputs_per_s, number, num_tenants) for number in num_replicas]
    sharded = [fleet.sharded() for fleet in whole]
    sections = (("engine", ENGINE, whole), ("store", STORE, whole), ("shards", SHARDED, sharded))
    table = Table(title=f"{outputs_per_s} outputs/s, tenants: {num_tenants}", title_justify="left")
    for heading in ("", *(f"{number} replicas" for number in num_replicas)):
        table.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    for name, rows, fleets in sections:
        table.add_section()
        table.add_row(name)
        for label, row in rows.items():
            table.add_row(f"  {label}", *(shown(row(fleet)) for fleet in fleets))
    return Report(
        figures={
            "tokens_per_output": costs.tokens_per_output,
            "learn_us_per_token": costs.learn_us,
            **{
                name: {label: [row(fleet) for fleet in fleets] for label, row in rows.items()}
                for name, rows, fleets in sections
            },
        },
        table=table,
        origin={
            "arguments": {
                "results": str(results),
                "outputs": outputs_per_s,
                "replicas": list(num_replicas),
                "tenants": num_tenants,
            }
        },
    )


def shown(value: float) -> str:
    """Return a figure with two or three significant digits."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}" if value >= 10 else f"{value:.2g}"
