"""The gateway over the bundled model: all endpoints return the same text, with and without drafts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest
import torch

from agentspec.engine import EngineConfig, TorchEngine
from agentspec.forest import Forest
from agentspec.models import BUNDLED_MODEL, bundled_model_dir
from tests.gateway.support.live import client_of, post, serving_engine

QUESTION = "How many users are there? users(id, name)"
MESSAGES: list[Any] = [
    {"role": "system", "content": "Answer with SQL."},
    {"role": "user", "content": QUESTION},
]
NUM_TOKENS = 24


@pytest.fixture(scope="module")
def root() -> Iterator[str]:
    before = torch.get_num_threads()
    config = EngineConfig(
        bundled_model_dir(), BUNDLED_MODEL, dtype="float64", max_model_len=256, threads=1, price=0.2
    )
    with serving_engine(TorchEngine(config, Forest())) as root:
        yield root
    torch.set_num_threads(before)


def chat_text(client: openai.OpenAI, headers: dict[str, str]) -> str:
    answer = client.chat.completions.create(
        model=BUNDLED_MODEL, messages=MESSAGES, temperature=0, max_tokens=NUM_TOKENS, extra_headers=headers
    )
    return answer.choices[0].message.content or ""


def responses_text(client: openai.OpenAI, headers: dict[str, str], **fields: Any) -> str:
    asked: dict[str, Any] = {"input": MESSAGES, **fields}
    stream = client.responses.create(
        model=BUNDLED_MODEL,
        temperature=0,
        max_output_tokens=NUM_TOKENS,
        stream=True,
        extra_headers=headers,
        **asked,
    )
    return "".join(event.delta for event in stream if event.type == "response.output_text.delta")


def test_chat_and_responses_say_the_same_with_drafts_and_without(root: str) -> None:
    with client_of(root) as client:
        texts = {
            text
            for headers in ({"X-AgentSpec-Max-Draft": "0"}, {}, {"X-AgentSpec-Max-Draft": "16"})
            for text in (
                chat_text(client, headers),
                responses_text(client, headers),
                responses_text(client, headers, instructions="Answer with SQL.", input=QUESTION),
            )
        }
        told = client.responses.create(
            model=BUNDLED_MODEL, input=MESSAGES, temperature=0, max_output_tokens=NUM_TOKENS
        ).to_dict()
    assert len(texts) == 1
    assert told["metrics"]["speculative_decoding"]["num_accepted_draft_tokens"] > 0


def test_tokens_there_and_back(root: str) -> None:
    tokenized = post(root, {"messages": MESSAGES, "return_token_strs": True}, "/tokenize").json()
    text = post(root, {"tokens": tokenized["tokens"]}, "/detokenize").json()["prompt"]
    assert QUESTION in text
    assert text.endswith("<|assistant|>")
    assert tokenized["token_strs"][-1] == "<|assistant|>"
    assert tokenized["max_model_len"] == 256
    again = post(root, {"prompt": text, "add_special_tokens": False}, "/tokenize").json()
    assert again["tokens"] == tokenized["tokens"]
    without = post(root, {"messages": MESSAGES, "add_generation_prompt": False}, "/tokenize").json()
    assert without["tokens"] == tokenized["tokens"][:-1]


EMOJI = "\N{SLIGHTLY SMILING FACE} caf\u00e9 \N{FAMILY}!"


@pytest.mark.parametrize("stream", [False, True])
def test_the_bytes_of_tokens_that_are_parts_of_characters(root: str, stream: bool) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"const": EMOJI}}}
    common = {"response_format": form, "max_tokens": 64, "temperature": 0}
    with client_of(root) as client:
        chat: Any = client.chat.completions.create(
            model=BUNDLED_MODEL, messages=MESSAGES, logprobs=True, top_logprobs=3, stream=stream, **common
        )
        chosen = [one.choices[0] for one in (chat if stream else [chat])]
        tokens = [token for one in chosen if one.logprobs for token in one.logprobs.content]
        text = "".join((one.delta if stream else one.message).content or "" for one in chosen)
        assert text == f'"{EMOJI}"'
        assert b"".join(bytes(token.bytes) for token in tokens).startswith(text.encode())
        assert any(bytes(token.bytes) not in text.encode() or "\ufffd" in token.token for token in tokens)
        assert all(
            token.bytes != list("\ufffd".encode()) for one in tokens for token in (one, *one.top_logprobs)
        )
        made: Any = client.completions.create(
            model=BUNDLED_MODEL, prompt="Say:", logprobs=0, stream=stream, extra_body=common
        )
        parts = [one.choices[0] for one in (made if stream else [made])]
        text = "".join(one.text for one in parts)
        read = [
            pair for one in parts for pair in zip(one.logprobs.tokens, one.logprobs.text_offset, strict=True)
        ]
        assert text == f'"{EMOJI}"'
        assert all(
            text[offset:].startswith(token)
            for token, offset in read
            if "\ufffd" not in token and token in text
        )
        assert read[-1][1] <= len(text)
