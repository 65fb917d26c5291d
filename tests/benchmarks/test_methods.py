"""``python -m benchmarks methods``: the methods on a small workload, and the table."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from agentspec.engine.drafters.training.medusa import TrainableMedusa
from agentspec.engine.drafters.training.publish import write_medusa
from agentspec.engine.model.checkpoint import load_model
from agentspec.models import bundled_model_dir
from benchmarks.command import main
from benchmarks.methods import measure, methods, workloads
from benchmarks.methods.report import CARD
from benchmarks.methods.sizes import Sizes
from benchmarks.methods.workloads import Workload

LIVE = ("off", "learned", "anpd", "recycling", "lookahead", "medusa")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Use one thread, like the benchmark itself."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def heads(tmp_path: Path) -> Path:
    model = load_model(bundled_model_dir())
    write_medusa(tmp_path / "medusa", TrainableMedusa(model.vocabulary(), 2))
    return tmp_path


@pytest.mark.parametrize("name", ["sql", "sampling"])
def test_methods_on_a_small_workload(name: str, heads: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = workloads.WORKLOADS[name]
    monkeypatch.setattr(workloads, "NUM_SAMPLES", 2)

    def small(num_questions: int, seed: int) -> Workload:
        load = whole(num_questions, seed)
        return Workload([question[:2] for question in load.questions], load.num_clients, load.num_slots)

    monkeypatch.setattr(measure, "WORKLOADS", {name: small})
    chosen = {key: methods.METHODS[key] for key in (*LIVE, "eagle-3")}
    monkeypatch.setattr(measure, "METHODS", chosen)
    found = measure.measure(name, heads, Sizes(1), lambda _: None)
    assert found["missing"] == ["eagle-3"]
    for phase in ("cold", "warm"):
        assert set(found[phase]) == set(LIVE)
        assert all(one["outputs_identical"] for one in found[phase].values())
        assert found[phase]["off"]["tokens_per_step"] == found[phase]["off"]["speedup_cpu"] == 1
    assert found["warm"]["learned"]["tokens_per_step"] > 1
    assert found["warm"]["recycling"]["drafted_per_step"] > 1
    table = CARD.table({name: found})
    assert table.row_count == len(LIVE)


def test_the_summary_and_the_table() -> None:
    served: dict[str, Any] = {
        "outputs_identical": True, "tokens_per_step": 2.5, "drafted_per_step": 4.0, "speedup_cpu": 1.5
    }  # fmt: skip
    parts = {"sql": {"cold": {"off": served}}, "sampling": {"warm": {"pld": served}}}
    assert json.loads(CARD.json_line(parts))["summary"] == {"outputs_identical": True}
    assert CARD.table(parts).row_count == 2
    parts["sql"]["cold"]["pld"] = {**served, "outputs_identical": False}
    assert CARD.summary(parts) == {"outputs_identical": False}
    assert CARD.summary({}) == {"outputs_identical": None}


def test_the_command_names_a_bad_part(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["methods", "--only", "prose"])
    assert "prose" in capsys.readouterr().err
