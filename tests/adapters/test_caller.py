from __future__ import annotations

import pytest

from agentspec.adapters.caller import SESSION_VARIABLE, made_up_session


@pytest.mark.parametrize("bad", ["", "s" * 300, "\udcff"])
def test_a_session_is_made_up_unless_the_process_has_one(monkeypatch: pytest.MonkeyPatch, bad: str) -> None:
    monkeypatch.delenv(SESSION_VARIABLE, raising=False)
    assert made_up_session() != made_up_session()
    assert made_up_session("own") == "own"
    monkeypatch.setenv(SESSION_VARIABLE, bad)
    assert made_up_session("own") == "own"
    monkeypatch.setenv(SESSION_VARIABLE, "run-1")
    assert made_up_session("own") == made_up_session() == "run-1"
