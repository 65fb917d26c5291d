from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from openai._base_client import BaseClient

from agentspec.reporting.report import Outputs, run
from lab.tagging import run as tagging

# microseconds of a request and of a method, first plain, then tagged
MADE_UP_US = (10.0, 1.0, 25.0, 3.0)


@pytest.mark.parametrize(("bar_us", "status"), [(21.0, 1), (21.5, 0)])
def test_figures_come_from_the_times_and_everything_is_put_back(
    bar_us: float, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    times = iter(MADE_UP_US)

    def least_us(action: Callable[[], None]) -> float:
        action()
        return next(times)

    before = (vars(BaseClient)["_build_request"], vars(tagging.Agent)["ask"])
    monkeypatch.setattr(tagging, "_least_us", least_us)
    monkeypatch.setattr(tagging, "BAR_US", bar_us)
    assert run(tagging.make_report, Outputs()) == status
    *table, last = capsys.readouterr().out.splitlines()
    rows = [line.replace("│", " ").split()[:2] for line in table if line.startswith("│")]
    line = json.loads(last)
    expected = {"request_untagged": 10.0, "headers": 15.0, "level": 2.0, "call_of_three_levels": 21.0}
    assert (line["benchmark"], line["us"], line["bar_us"]) == ("tagging", expected, bar_us)
    assert rows == [[name, f"{us:.1f}"] for name, us in expected.items()]
    assert ("FAIL" if status else "pass") in " ".join(table)
    assert (vars(BaseClient)["_build_request"], vars(tagging.Agent)["ask"]) == before


def test_the_least_round_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    clock_ns = iter([0, 90_000, 100_000, 140_000, 200_000, 260_000])
    monkeypatch.setattr(tagging, "time", SimpleNamespace(process_time_ns=lambda: next(clock_ns)))
    monkeypatch.setattr(tagging, "NUM_ROUNDS", 3)
    monkeypatch.setattr(tagging, "NUM_CALLS", 20)
    calls: list[None] = []
    assert tagging._least_us(lambda: calls.append(None)) == 2.0  # 40 us in 20 calls
    assert len(calls) == 60
