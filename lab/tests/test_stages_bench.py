"""``python -m lab stages``: the index, the data, and the report on them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from agentspec.reporting.report import Outputs, run
from lab.stages import growth, measure, report
from lab.stages import run as stages_run
from lab.stages.generated import workloads
from lab.stages.methods import Ours
from lab.stages.partition import adjusted_rand_index
from lab.stages.untagged import Untagged, agentic_sql, recorded, truth
from lab.stages.workflows import KINDS, NUM_TUNED, calls


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("aabb", "xxyy", 1.0),
        ("aabb", "xyxy", -0.5),
        ("aaab", "xxyy", 0.0),
        ("abcd", "wxyz", 1.0),
        ("aaaa", "xxxx", 1.0),
        ("aabbcc", "xxyyyy", 0.4444444444444444),
    ],
)
def test_the_adjusted_rand_index(one: str, other: str, expected: float) -> None:
    assert adjusted_rand_index(one, other) == pytest.approx(expected)
    assert adjusted_rand_index(other, one) == pytest.approx(expected)


def test_stages_of_one_prompt_are_one() -> None:
    prompts = [("a", "x y"), ("b", "x  y"), ("c", "z"), ("b", "w"), ("d", "w")]
    assert truth(Untagged(stage, {"prompt": prompt}) for stage, prompt in prompts) == [
        "a",
        "a",
        "c",
        "a",
        "a",
    ]


def test_recorded_prompts_become_bodies(tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl.gz"
    prompts = {
        "chat": "<|tools|>\n[]\n<|system|>\nPlan.\n<|human|>\nhi\n<|critic|>\nno\n<|assistant|>\n",
        "text": "Q: why?\nA:",
    }
    with gzip.open(path, "wt", encoding="utf-8") as lines:
        for stage, prompt in prompts.items():
            lines.write(json.dumps({"session": stage, "stage": stage, "prompt": prompt}) + "\n")
    bodies = {call.stage: call.body for call in recorded(path, 10, seed=1)}
    assert bodies["text"] == {"prompt": "Q: why?\nA:"}
    assert [one["role"] for one in bodies["chat"]["messages"]] == ["system", "user", "assistant"]
    assert bodies["chat"]["tools"] == []


def test_workloads_are_the_same_every_time() -> None:
    assert workloads(1) == workloads(1) != workloads(2)


def test_the_examples_stages_are_found() -> None:
    calls, ours = agentic_sql(8, seed=1), Ours()
    for call in calls:
        ours.see(call.body)
    assert adjusted_rand_index(truth(calls), [ours.label(call.body) for call in calls]) >= report.LEAST_ARI


@pytest.mark.parametrize("kind", KINDS)
def test_growing_workflows_are_found(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "LEAST_ARI", {250: 0.90, 900: 0.95})
    assert calls(kind, 1, 9) == calls(kind, 1, 9) != calls(kind, 2, 9)
    figures = growth.of_variant(kind, variant=NUM_TUNED)
    assert growth.passes(figures), figures


def test_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "NUM_QUESTIONS", 4)
    monkeypatch.setattr(measure, "workloads", lambda seed: {"short": workloads(seed)["short"][:60]})
    monkeypatch.setattr(measure, "PROMPT_SIZES", {"1 KiB": 1 << 10})
    monkeypatch.setattr(measure, "NUM_TIMED", 10)
    monkeypatch.setattr(growth, "LEAST_ARI", {250: 0.9})
    figures = measure.measure(None, 10, 1, 1, lambda what: None)
    assert set(figures["by_kind"]) == set(KINDS)
    assert set(figures["by_data"]) == {"agentic_sql", "short"}
    assert set(figures["microseconds"]["1 KiB"]) == {"seen", "masked", "template", "new"}
    assert report.table(figures).row_count == 2
    assert any("pass" in note for note in report.notes(figures))


@pytest.mark.slow
def test_the_report_of_stages(tmp_path: Path) -> None:
    path = tmp_path / "stages.json"
    assert run(lambda announce: stages_run.make_report(None, 20, 1, 1, announce), Outputs(json=path)) == 0
    line = json.loads(path.read_text())
    assert line["by_data"]["agentic_sql"]["ours"]["ari"] is not None
    assert line["provenance"]["arguments"] == {"calls": 20, "variants": 1, "seed": 1}
