"""The stored lists of request fields hold every field of the installed vLLM and Anthropic package."""

from __future__ import annotations

import importlib
import typing

import pytest

from tests.gateway.openai import published

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what vLLM imports

OPENAI = "vllm.entrypoints.openai"
TOKENIZE = "vllm.entrypoints.serve.tokenize.protocol"
ANTHROPIC = "vllm.entrypoints.anthropic.protocol"


@pytest.mark.parametrize(
    ("module", "name", "names"),
    [
        (f"{OPENAI}.chat_completion.protocol", "ChatCompletionRequest", published.VLLM_CHAT),
        (f"{OPENAI}.completion.protocol", "CompletionRequest", published.VLLM_COMPLETIONS),
        (f"{OPENAI}.responses.protocol", "ResponsesRequest", published.VLLM_RESPONSES),
        (TOKENIZE, "TokenizeChatRequest", published.VLLM_TOKENIZE),
        (TOKENIZE, "TokenizeCompletionRequest", published.VLLM_TOKENIZE),
        (TOKENIZE, "DetokenizeRequest", published.VLLM_DETOKENIZE),
        (ANTHROPIC, "AnthropicMessagesRequest", f"{published.ANTHROPIC} {' '.join(published.GENERATING)}"),
    ],
)
def test_fields_of_vllm(module: str, name: str, names: str) -> None:
    request = getattr(importlib.import_module(module), name)
    known = {*names.split(), *published.VLLM_EARLIER.split()}
    assert request.model_fields.keys() - known == set()


def test_members_of_structured_outputs() -> None:
    params = importlib.import_module("vllm.sampling_params").StructuredOutputsParams
    found = {name for name in typing.get_type_hints(params) if not name.startswith("_")}
    assert found <= set(published.MEMBERS["structured_outputs"].split())


@pytest.mark.parametrize("module", ["anthropic.types", "anthropic.types.beta"])
def test_fields_of_anthropic(module: str) -> None:
    params = importlib.import_module(f"{module}.message_create_params").MessageCreateParamsStreaming
    assert typing.get_type_hints(params).keys() <= set(published.ANTHROPIC.split())
