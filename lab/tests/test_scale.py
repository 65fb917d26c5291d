"""Fleets on paper: the arithmetic, the costs that it reads, and the tables of lab/scale.md."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from agentspec.errors import ConfigError
from lab.command import build_parser
from lab.scale.costs import Costs
from lab.scale.fleet import Fleet
from lab.scale.run import ENGINE, SHARDED, STORE, make_report, shown

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "fleet.json"
DOCUMENT = ROOT / "lab" / "scale.md"
REPLICAS = (10, 100, 1000)

BATCH = {
    "bytes_per_output": 300.0,
    "publish_us_per_output": 50.0,
    "publish_server_us_per_entry": 100.0,
    "learn_us_per_token": 1.0,
    "learn_server_us_per_entry": 10.0,
    "snapshot_us_per_output": 20.0,
}
COSTS = Costs(
    tokens_per_output=100.0,
    share_us=20.0,
    learn_us=2.0,
    tenant_tree_bytes=64.0,
    trees_bytes=128.0,
    looks_us={1: 100.0, 101: 1_100.0},
    by_batch={1: BATCH, 100: {**BATCH, "bytes_per_output": 200.0}},
)


def test_options() -> None:
    parsed = build_parser().parse_args(["scale", "--outputs", "100", "--replicas", "2,4"])
    assert (parsed.outputs, parsed.replicas, parsed.tenants) == (100, (2, 4), 1)
    assert ROOT / parsed.results == RESULTS


# ---- costs ----


def test_figures_between_two_sizes_of_batches() -> None:
    assert COSTS.of_batch("bytes_per_output", 1) == 300
    assert COSTS.of_batch("bytes_per_output", 10) == pytest.approx(250)
    assert COSTS.of_batch("bytes_per_output", 1e6) == 200
    assert COSTS.look_us(11) == pytest.approx(200)


@pytest.mark.parametrize("content", [None, "", "{}", '{"parts": {"publish": {}}}'])
def test_a_file_without_costs_is_refused(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "fleet.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match="benchmarks fleet --only costs,publish"):
        Costs.read(path)


def test_the_results_of_the_repository_have_all_costs() -> None:
    costs = Costs.read(RESULTS)
    assert 10 < costs.tokens_per_output < 1000
    assert set(BATCH) <= set.intersection(*(set(one) for one in costs.by_batch.values()))


# ---- arithmetic ----


def test_every_engine_reads_all() -> None:
    fleet = Fleet(COSTS, 1_000, 10)
    assert fleet.batch_outputs == 25
    assert fleet.entries_per_s == 40
    assert fleet.bytes_out_per_s == 10 * fleet.bytes_in_per_s
    assert fleet.writing_cores == pytest.approx(40 * 100e-6)
    assert fleet.reading_cores == pytest.approx(10 * 40 * 10e-6)


def test_engines_learn_from_the_others() -> None:
    fleet = Fleet(COSTS, 10_000, 10)
    assert fleet.learnable_tokens_per_s == pytest.approx(900_000)
    assert fleet.learning_cores == pytest.approx(1.8)
    assert fleet.learned == pytest.approx(0.25 / 1.8)
    assert Fleet(COSTS, 10_000, 1).learned == 1
    assert Fleet(COSTS, 100, 10).learned == 1


def test_batches_have_one_output_at_least_and_a_limit() -> None:
    assert Fleet(COSTS, 10, 100).batch_outputs == 1
    assert Fleet(COSTS, 10, 100).entries_per_s == 10
    assert Fleet(COSTS, 1e6, 10).batch_outputs == pytest.approx((256 << 10) / 464)


def test_trees_hold_the_newest() -> None:
    fleet = Fleet(COSTS, 10_000, 100)
    assert fleet.tenant_tree_s == pytest.approx((64 << 20) / 64 / 1e6)
    assert fleet.trees_s == pytest.approx((512 << 20) / 128 / 1e6)
    assert Fleet(COSTS, 10_000, 100, num_tenants=4).tenant_tree_s == pytest.approx(4 * fleet.tenant_tree_s)


@pytest.mark.parametrize("number", REPLICAS)
def test_the_fewest_shards_with_which_all_is_learned(number: int) -> None:
    sharded = Fleet(COSTS, 10_000, number).sharded()
    assert sharded.learned == 1
    assert 1 < sharded.num_shards <= number
    assert replace(sharded, num_shards=sharded.num_shards - 1).learned < 1
    assert sharded.bytes_out_per_s < Fleet(COSTS, 10_000, number).bytes_out_per_s


def test_a_small_fleet_needs_no_shards() -> None:
    assert Fleet(COSTS, 100, 10).sharded().num_shards == 1


# ---- the report and the document ----


def test_the_report(tmp_path: Path) -> None:
    report = make_report(RESULTS, 10_000, REPLICAS, 1)
    assert json.loads(json.dumps(report.figures))["store"]["entries/s in"] == pytest.approx([40, 400, 4000])


def test_the_document_has_the_figures_of_the_command() -> None:
    costs = Costs.read(RESULTS)
    whole = [Fleet(costs, 10_000, number) for number in REPLICAS]
    sections = {"An engine": (ENGINE, whole), "The store": (STORE, whole)}
    sections["Shards"] = (SHARDED, [fleet.sharded() for fleet in whole])
    for heading, (rows, fleets) in sections.items():
        text = DOCUMENT.read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
        lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
        found = {cells[0]: cells[1:] for cells in lines if cells[0] in rows}
        assert found == {label: [shown(row(fleet)) for fleet in fleets] for label, row in rows.items()}
