from __future__ import annotations

import json

import pytest
from openai._base_client import BaseClient

from agentspec.benchmarks import tagging


def test_it_measures_and_puts_everything_back(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (vars(BaseClient)["_build_request"], vars(tagging.Agent)["ask"])
    monkeypatch.setattr(tagging, "NUM_CALLS", 20)
    monkeypatch.setattr(tagging, "BAR_US", 0.0)
    assert tagging.run() == 1
    line = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert line["us"]["headers"] > 0
    assert line["us"]["call_of_three_levels"] > line["us"]["headers"]
    assert (vars(BaseClient)["_build_request"], vars(tagging.Agent)["ask"]) == before
