"""``python -m lab methods``: the methods on a small workload, and the table."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from agentspec.engine.model.checkpoint import load_model
from agentspec.models import bundled_model_dir
from lab.command import main
from lab.drafters.training.medusa import TrainableMedusa
from lab.drafters.training.publish import write_medusa
from lab.methods import budgets, measure, methods, workloads
from lab.methods.report import CARD
from lab.methods.sizes import Sizes
from lab.methods.workloads import Places, Workload

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


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sql", "sampling"])
def test_methods_on_a_small_workload(name: str, heads: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = workloads.WORKLOADS[name]
    monkeypatch.setattr(workloads, "NUM_SAMPLES", 2)

    def small(num_questions: int, seed: int) -> Workload:
        load = whole(num_questions, seed)
        return Workload([question[:2] for question in load.questions], load.num_clients, load.num_slots)

    monkeypatch.setattr(workloads, "WORKLOADS", {name: small})
    chosen = {key: methods.METHODS[key] for key in (*LIVE, "eagle-3")}
    monkeypatch.setattr(measure, "METHODS", chosen)
    found = measure.measure(name, Places(heads), Sizes(1), lambda _: None)
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
    compared = ("hybrid_vs_best_part_mean", "hybrid_vs_best_part_min")
    open_ended = ("mean", "min", "equal_drafts_min")
    unknown = dict.fromkeys((*compared, *(f"hybrid_vs_trees_open_{name}" for name in open_ended)))
    assert json.loads(CARD.json_line(parts))["summary"] == {"outputs_identical": True, **unknown}
    assert CARD.table(parts).row_count == 2
    parts["sql"]["cold"]["pld"] = {**served, "outputs_identical": False}
    assert CARD.summary(parts) == {"outputs_identical": False, **unknown}
    assert CARD.summary({}) == {"outputs_identical": None, **unknown}
    ratios = [
        {
            "hybrid_vs_best_part_mean": mean,
            "hybrid_vs_best_part_min": least,
            "hybrid_vs_trees_at_the_same_price_mean": 1.0,
        }
        for mean, least in ((1.2, 1.1), (1.4, 1.0))
    ]
    parts["sql_budgets"] = {"against_parts": dict(zip(("cold", "warm"), ratios, strict=True))}
    assert CARD.summary(parts)["hybrid_vs_best_part_mean"] == pytest.approx(1.3)
    assert CARD.summary(parts)["hybrid_vs_best_part_min"] == 1.0
    against = {
        "hybrid_vs_best_part_mean": None,
        "hybrid_vs_trees_at_the_same_price_mean": 1.25,
        "hybrid_vs_trees_at_equal_drafts_mean": 1.125,
    }
    parts["open_budgets"] = {"against_parts": {"cold": against}}
    assert CARD.summary(parts)["hybrid_vs_trees_open_min"] == 1.25
    assert CARD.summary(parts)["hybrid_vs_trees_open_equal_drafts_min"] == 1.125
    assert "hybrid_vs_trees_open_min 1.250 [red]FAIL[/red] (at least 1.3)" in str(CARD.table(parts).caption)


def test_the_hybrid_is_compared_with_the_better_part_at_as_many_draft_tokens() -> None:
    served = {
        budgets.named(method, price): {
            "drafted_per_step": drafted * number,
            "tokens_per_step": 1 + gain * number,
        }
        for method, drafted, gain in (("hybrid", 2.0, 1.0), ("learned", 1.0, 0.4), ("eagle-3", 3.0, 0.9))
        for number, price in enumerate(budgets.PRICES, 1)
    }
    # the hybrid drafts 2, 4, 6, 8 and 10 tokens; the trees at most 5, EAGLE-3 at most 15, 0.3 tokens for each
    ratios = [2 / 1.8, 3 / 2.6, 4 / 2.8, 5 / 3.4, 6 / 4.0]
    found = budgets.against_parts(served)
    assert found["hybrid_vs_best_part_mean"] == pytest.approx(sum(ratios) / 5)
    assert found["hybrid_vs_best_part_min"] == pytest.approx(min(ratios))
    assert found["num_prices"] == 5
    assert found["hybrid_vs_trees_at_equal_drafts_mean"] == pytest.approx(sum(ratios[:2]) / 2)
    relative = [(1 + number) / (1 + 0.4 * number) for number in range(1, 6)]
    assert found["hybrid_vs_trees_at_the_same_price_mean"] == pytest.approx(sum(relative) / 5)


def test_prices_at_which_the_hybrid_drafts_more_than_its_parts_are_left_out() -> None:
    served = {
        budgets.named(method, price): {"drafted_per_step": drafted * number, "tokens_per_step": 1.0 + number}
        for method, drafted in (("hybrid", 2.5), ("learned", 1.0), ("eagle-3", 0.5))
        for number, price in enumerate(budgets.PRICES, 1)
    }
    found = budgets.against_parts(served)
    assert found["num_prices"] == 2  # 2.5 and 5 draft tokens
    none = {
        name: {**one, "drafted_per_step": 99.0} if "hybrid" in name else one for name, one in served.items()
    }
    assert budgets.against_parts(none)["hybrid_vs_best_part_mean"] is None
    assert budgets.against_parts(none)["hybrid_vs_trees_at_equal_drafts_mean"] is None


def test_the_hybrid_of_a_draft_model_is_compared_with_that() -> None:
    priced = budgets.at_prices(budgets.HYBRID_OF_DRAFT_MODEL)
    assert len(priced) == 1 + 3 * len(budgets.PRICES)
    served = {name: {"drafted_per_step": 2.0, "tokens_per_step": 2.0} for name in priced}
    found = budgets.against_parts(served, budgets.HYBRID_OF_DRAFT_MODEL)
    assert found["hybrid_vs_best_part_mean"] == pytest.approx(1)


@pytest.mark.slow
def test_budgets_need_the_models_head(heads: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budgets, "PRICES", (0.2,))
    said: list[str] = []
    found = measure.measure("sql_budgets", Places(heads), Sizes(1), said.append)
    assert "without eagle-3 at 0.2, hybrid at 0.2, for which there are no heads (--heads)" in said[0]
    assert found["missing"] == ["eagle-3 at 0.2", "hybrid at 0.2"]
    assert "against_parts" not in found
    assert found["cold"]["learned at 0.2"]["outputs_identical"]


def test_the_command_names_a_bad_part(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["methods", "--only", "prose"])
    assert "prose" in capsys.readouterr().err
