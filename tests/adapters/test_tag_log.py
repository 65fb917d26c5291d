"""Debug lines of the logger ``agentspec.adapters`` for each call."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from agentspec.adapters.caller import CALLER, FINDERS, Caller, calling, current_caller
from agentspec.adapters.hooks import below, hinted
from agentspec.adapters.openai import instrument, stage
from tests.adapters.support.strangers import PUBLIC, Server, serving_every_name

ASKED: Any = {"model": "gpt-x", "messages": [{"role": "user", "content": "a secret"}]}


@pytest.fixture
def server() -> Iterator[Server]:
    with serving_every_name() as server:
        undo = instrument(workflow="flow")
        yield server
        undo()


def test_a_line_for_each_call(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "agentspec.adapters")

    def ask(host: str = "gateway", **options: Any) -> None:
        url = f"http://{host}:{server.server_port}/v1"
        with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
            client.chat.completions.create(**ASKED, **options)

    with calling(hinted("writer", session="s", by="CrewAI's role")):
        ask()
        with calling(below()):
            ask()
    with stage("café plan"):
        ask()
    ask(extra_headers={"X-AgentSpec-Stage": "mine"})
    ask()
    ask(PUBLIC)
    lines = [record.getMessage() for record in caplog.records if record.name == "agentspec.adapters"]
    assert lines == [
        *["tagged gpt-x as flow/writer by CrewAI's role, session s"] * 2,
        "tagged gpt-x as flow/café plan by stage(...)",
        "tagged gpt-x as mine by a header",
        "tagged gpt-x as one of flow, and the gateway finds its stage",
        f"not tagged: {PUBLIC} is no host of hosts=[...], nor a private one",
    ]


def test_a_framework_that_notes_callers_elsewhere_is_asked_last() -> None:
    found = Caller(role=("node",))
    FINDERS.append(lambda: found)
    try:
        assert current_caller() is found
        with calling(Caller(role=("writer",))):
            assert current_caller() is CALLER.get()
        with calling(Caller(is_untagged=True)):
            assert current_caller() is CALLER.get()
    finally:
        FINDERS.pop()
