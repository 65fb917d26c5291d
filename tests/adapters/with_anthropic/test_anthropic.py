"""The real ``anthropic`` client, with servers of several names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from anthropic._base_client import BaseClient

from agentspec.adapters.anthropic import instrument, stage, untagged
from agentspec.errors import StageError
from tests.adapters.support.strangers import PUBLIC, Server, serving_every_name

ASKED: Any = {"model": "m", "max_tokens": 8, "messages": [{"role": "user", "content": "hi"}]}
TAGS = {"x-agentspec-stage": "flow/a", "x-agentspec-session": "s"}


@pytest.fixture
def server() -> Iterator[Server]:
    with serving_every_name() as server:
        undo = instrument(workflow="flow")
        yield server
        undo()


def options(server: Server, host: str) -> dict[str, Any]:
    return {"base_url": f"http://{host}:{server.server_port}", "api_key": "none", "max_retries": 0}


def test_messages_are_tagged_but_for_strangers(server: Server) -> None:
    for host in ("gateway", PUBLIC):
        with anthropic.Anthropic(**options(server, host)) as client, stage("a", session="s"):
            client.messages.create(**ASKED)
    assert server.tags() == [("gateway", TAGS), (PUBLIC, {})]


async def test_asynchronous_clients_too(server: Server) -> None:
    async with anthropic.AsyncAnthropic(**options(server, "gateway")) as client:
        with stage("a", session="s"):
            await client.messages.create(**ASKED)
    assert server.tags() == [("gateway", TAGS)]


def test_calls_without_a_tag(server: Server) -> None:
    with anthropic.Anthropic(**options(server, "gateway")) as client, stage("a"):
        client.messages.create(**ASKED, extra_headers={"X-AgentSpec-Stage": anthropic.omit})
        with untagged():
            client.messages.create(**ASKED)
    assert server.tags() == [("gateway", {})] * 2


def test_a_redirect_to_a_stranger(server: Server) -> None:
    server.redirect = f"http://{PUBLIC}:{server.server_port}/v1/messages"
    with anthropic.Anthropic(**options(server, "gateway")) as client, stage("a", session="s"):
        client.messages.create(**ASKED)
    assert server.tags() == [("gateway", TAGS), (PUBLIC, {})]


def test_it_can_be_undone() -> None:
    before = vars(BaseClient)["_build_request"]
    undo = instrument()
    assert vars(BaseClient)["_build_request"] is not before
    undo()
    with pytest.raises(StageError):
        instrument(workflow="a//b")
    assert vars(BaseClient)["_build_request"] is before
