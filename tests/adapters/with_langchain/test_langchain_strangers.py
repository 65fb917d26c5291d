"""LangChain's models and ours, with servers of other names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from langchain_openai import AzureChatOpenAI, ChatOpenAI, OpenAI

from agentspec.adapters.langchain import AgentSpecLLM, ChatAgentSpec, instrument
from tests.adapters.support.strangers import PUBLIC, Server, serving_every_name

TAGGED: Any = {"tags": ["agentspec:a"]}


@pytest.fixture
def server() -> Iterator[Server]:
    with serving_every_name() as server:
        yield server


def fields(server: Server, host: str) -> dict[str, Any]:
    return {
        "model": "m",
        "base_url": f"http://{host}:{server.server_port}/v1",
        "api_key": "none",
        "max_retries": 0,
        "timeout": 20,
    }


def test_instrumented_models(server: Server) -> None:
    undo = instrument(workflow="flow")
    for model in (ChatOpenAI, OpenAI):
        for host in ("gateway", PUBLIC):
            model(**fields(server, host)).invoke("hi", TAGGED)
    undo()
    undo = instrument(workflow="flow", hosts=[PUBLIC])
    ChatOpenAI(**fields(server, PUBLIC)).invoke("hi", TAGGED)
    undo()
    tag = {"x-agentspec-stage": "flow/a"}
    assert server.tags() == [("gateway", tag), (PUBLIC, {})] * 2 + [(PUBLIC, tag)]


def test_azure(server: Server) -> None:
    undo = instrument(workflow="flow")
    model = AzureChatOpenAI(
        azure_endpoint=f"http://secret.openai.azure.com:{server.server_port}",
        azure_deployment="m",
        api_version="1",
        api_key="none",
        max_retries=0,
    )
    model.invoke("hi", TAGGED)
    undo()
    assert server.tags() == [("secret.openai.azure.com", {})]


def test_the_base_url_of_our_models_is_a_gateways(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    ChatAgentSpec(**fields(server, PUBLIC)).invoke("hi", TAGGED)
    AgentSpecLLM(**fields(server, PUBLIC)).invoke("hi", TAGGED)
    monkeypatch.setenv("AGENTSPEC_DISABLE", "1")
    ChatAgentSpec(**fields(server, PUBLIC)).invoke("hi", TAGGED)
    tag = {"x-agentspec-stage": "a"}
    assert server.tags() == [(PUBLIC, tag), (PUBLIC, tag), (PUBLIC, {})]


def test_our_model_without_a_base_url_asks_a_stranger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    monkeypatch.delenv("OPENAI_API_BASE", raising=False)
    model = ChatAgentSpec(model="m", api_key="none", stage="a")
    assert "extra_headers" not in model._get_request_payload("hi")
    monkeypatch.setenv("OPENAI_BASE_URL", f"https://{PUBLIC}/v1")
    model = ChatAgentSpec(model="m", api_key="none", stage="a")
    assert model._get_request_payload("hi")["extra_headers"] == {"x-agentspec-stage": "a"}


def test_a_redirect_of_the_gateway(server: Server) -> None:
    server.redirect = f"http://{PUBLIC}:{server.server_port}/v1/chat/completions"
    ChatAgentSpec(**fields(server, "gateway")).invoke("hi", TAGGED)
    assert server.tags() == [("gateway", {"x-agentspec-stage": "a"}), (PUBLIC, {})]


def test_a_call_without_a_tag(server: Server) -> None:
    omitted = {"X-AgentSpec-Stage": openai.Omit()}
    model = ChatAgentSpec(**fields(server, "gateway"), stage="a")
    model.invoke("hi", {"metadata": {"thread_id": "7"}})
    model.invoke("hi", {"metadata": {"thread_id": "7"}}, extra_headers=omitted)
    assert [tags for _, tags in server.tags()] == [
        {"x-agentspec-stage": "a", "x-agentspec-session": "7"},
        {},
    ]
