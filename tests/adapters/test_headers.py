from __future__ import annotations

import pytest

from agentspec import wire
from agentspec.adapters.headers import agentspec_headers
from agentspec.errors import ConfigError, StageError


def test_a_stage_is_one_header() -> None:
    assert agentspec_headers("flow/café one") == {"x-agentspec-stage": "flow/caf%C3%A9%20one"}
    assert wire.decode_stage(agentspec_headers("flow/café one")[wire.STAGE_HEADER]) == "flow/café one"


def test_everything_else_is_optional() -> None:
    assert agentspec_headers("a", "run 1/é", max_draft=0, learn=False) == {
        "x-agentspec-stage": "a",
        "x-agentspec-session": "run%201%2F%C3%A9",
        "x-agentspec-max-draft": "0",
        "x-agentspec-learn": "0",
    }


def test_the_gateway_may_find_the_stage_out() -> None:
    assert agentspec_headers(None) == {}
    assert agentspec_headers(None, "run-1") == {"x-agentspec-session": "run-1"}


@pytest.mark.parametrize("stage", ["", "a//b", "a ", "/".join("abcdefghi"), "é" * 50])
def test_a_bad_stage_is_refused_before_it_is_sent(stage: str) -> None:
    with pytest.raises(StageError):
        agentspec_headers(stage)


@pytest.mark.parametrize("session", ["", "s" * 256, "é" * 43])
def test_a_session_must_fit_a_header(session: str) -> None:
    with pytest.raises(ConfigError, match="session"):
        agentspec_headers("a", session)


@pytest.mark.parametrize("max_draft", [-1, 1025])
def test_a_bad_draft_length(max_draft: int) -> None:
    with pytest.raises(ConfigError, match="max_draft"):
        agentspec_headers("a", max_draft=max_draft)
