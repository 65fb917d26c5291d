from __future__ import annotations

import json
from operator import le
from pathlib import Path
from typing import Any

import pytest

from agentspec.errors import ConfigError
from agentspec.reporting.report import Announce, Outputs
from benchmarks.command import build_parser
from benchmarks.harness.scorecard import Bar, Scorecard

CARD = Scorecard("card", "a card", [Bar("errors", "one", "num_errors", le, 0)], lambda parts: {})


@pytest.mark.parametrize(
    ("given", "names"),
    [
        (["gateway", "--only", "latency,soak", "--only", "throughput"], ["latency", "soak", "throughput"]),
        (["vllm", "--only", "sql,soak"], ["sql", "soak"]),
        (["vllm"], []),
    ],
)
def test_parts_on_the_command_line(given: list[str], names: list[str]) -> None:
    assert build_parser().parse_args(given).only == names


def test_all_parts_have_the_facts_from_before_the_first(tmp_path: Path, monkeypatch: Any) -> None:
    moments = iter(range(9))
    monkeypatch.setattr("benchmarks.harness.scorecard.provenance", lambda: {"moment": next(moments)})
    path = tmp_path / "new" / "card.json"
    status = CARD.run(["one", "two"], lambda name, announce: {}, lambda: {"of": "us"}, Outputs(json=path))
    assert status == 0
    facts = {"moment": 0, "of": "us"}
    assert json.loads(path.read_text())["parts"] == {name: {"provenance": facts} for name in ("one", "two")}


def test_a_part_that_fails_costs_only_itself(tmp_path: Path) -> None:
    def measure(name: str, announce: Announce) -> dict[str, Any]:
        if name == "two":
            raise ConfigError("no traces")
        return {"num_errors": 0}

    path = tmp_path / "card.json"
    with pytest.raises(ConfigError, match="no traces"):
        CARD.run(["one", "two"], measure, dict, Outputs(json=path))
    assert set(json.loads(path.read_text())["parts"]) == {"one"}
