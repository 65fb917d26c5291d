"""LiteLLM tags no call that may reach an unknown host, in any of its attempts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import litellm
import pytest

from agentspec.adapters.litellm import instrument
from agentspec.adapters.openai import untagged
from tests.adapters.support.strangers import PUBLIC, Server, serving_every_name

pytestmark = [  # from LiteLLM, which keeps connections after their event loop ends
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:.*`ReadOnly` qualifier:UserWarning"),
    pytest.mark.filterwarnings("ignore:Pydantic serializer warnings:UserWarning"),
]
MESSAGES = [{"role": "user", "content": "hi"}]
TAG = {"x-agentspec-workflow": "flow"}


@pytest.fixture
def server() -> Iterator[Server]:
    with serving_every_name() as server:
        undo = instrument(workflow="flow")
        yield server
        undo()


def url_of(server: Server, host: str) -> str:
    return f"http://{host}:{server.server_port}/v1"


@pytest.mark.parametrize("provider", ["openai", "hosted_vllm", "openrouter"])
@pytest.mark.parametrize("field", ["api_base", "base_url"])
async def test_the_address_of_the_call(server: Server, provider: str, field: str) -> None:
    for host in ("gateway", PUBLIC):
        options: Any = {"api_key": "none", "max_retries": 0, field: url_of(server, host)}
        litellm.completion(f"{provider}/m", MESSAGES, **options)
        await litellm.acompletion(model=f"{provider}/m", messages=MESSAGES, **options)
    assert server.tags() == [("gateway", TAG)] * 2 + [(PUBLIC, {})] * 2


@pytest.mark.parametrize(
    ("model", "variable"), [("openai/m", "OPENAI_BASE_URL"), ("hosted_vllm/m", "HOSTED_VLLM_API_BASE")]
)
def test_the_address_of_the_environment(
    server: Server, model: str, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for host in ("gateway", PUBLIC):
        monkeypatch.setenv(variable, url_of(server, host))
        litellm.completion(model=model, messages=MESSAGES, api_key="none", max_retries=0)
    assert server.tags() == [("gateway", TAG), (PUBLIC, {})]


def test_a_fallback_to_a_stranger(server: Server) -> None:
    own = {
        "model": "openai/m",
        "messages": MESSAGES,
        "api_key": "none",
        "api_base": url_of(server, "gateway"),
    }
    for host in ("gateway", PUBLIC):
        fallback = {"model": "openai/m", "api_base": url_of(server, host)}
        litellm.completion(**own, fallbacks=[fallback])
    assert server.tags() == [("gateway", TAG), ("gateway", {})]


def test_where_the_address_is_not_known(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    monkeypatch.delenv("OPENAI_API_BASE", raising=False)
    from agentspec.adapters.litellm import gets_tags

    assert not gets_tags("gpt-4o", {})
    assert not gets_tags("no such model", {})
    assert not gets_tags("openai/m", {"litellm_credential_name": "mine"})


def test_a_block_without_tags(server: Server) -> None:
    with untagged():
        options: Any = {"api_key": "none", "max_retries": 0, "api_base": url_of(server, "gateway")}
        litellm.completion("hosted_vllm/m", MESSAGES, **options)
    assert server.tags() == [("gateway", {})]


@pytest.mark.parametrize("provider", ["openai", "hosted_vllm"])
def test_a_redirect_to_a_stranger(server: Server, provider: str) -> None:
    server.redirect = f"http://{PUBLIC}:{server.server_port}/v1/chat/completions"
    options: Any = {"api_key": "none", "max_retries": 0, "api_base": url_of(server, "gateway")}
    litellm.completion(f"{provider}/m", MESSAGES, **options)
    assert server.tags() == [("gateway", TAG), (PUBLIC, {})]
