from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest

from agentspec.stages import StageKey
from tests.gateway.support.live import chat_body, client_of, post
from tests.gateway.support.scripted import FIGURES, NUM_PROMPT_TOKENS, STEPS, ScriptedEngine

HI: list[Any] = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[openai.OpenAI]:
    with client_of(url) as opened:
        yield opened


def test_a_whole_answer(client: openai.OpenAI, engine: ScriptedEngine) -> None:
    answer = client.chat.completions.create(model="scripted", messages=HI)
    assert answer.object == "chat.completion"
    assert answer.model == "scripted"
    assert answer.id.startswith("chatcmpl-")
    assert [choice.message.content for choice in answer.choices] == ["Hello, wörld!"]
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == NUM_PROMPT_TOKENS
    assert answer.usage.completion_tokens == 2 * len(STEPS)
    assert answer.usage.total_tokens == NUM_PROMPT_TOKENS + 2 * len(STEPS)
    assert answer.to_dict()["metrics"] == {"speculative_decoding": FIGURES}
    assert engine.last.prompt == HI
    assert engine.last.tags.stage == StageKey("default", ("default",))
    assert engine.last.tags.learn is True
    assert engine.last.sampling.temperature == 1.0
    assert engine.last.sampling.max_tokens is None


def test_a_stream_has_one_event_per_step(client: openai.OpenAI) -> None:
    chunks = list(client.chat.completions.create(model="scripted", messages=HI, stream=True))
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk.id for chunk in chunks}) == 1
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].delta.content for chunk in chunks] == ["", *STEPS]
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * len(STEPS) + ["stop"]
    assert all(chunk.usage is None for chunk in chunks)


def test_a_stream_ends_with_usage_and_metrics_if_asked(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="scripted", messages=HI, stream=True, stream_options={"include_usage": True}
    )
    *chunks, last = list(stream)
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.completion_tokens == 2 * len(STEPS)
    assert last.to_dict()["metrics"] == {"speculative_decoding": FIGURES}
    assert all(chunk.usage is None for chunk in chunks)


def test_several_choices(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="scripted", messages=HI, n=3)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert {choice.message.content for choice in answer.choices} == {"Hello, wörld!"}
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == NUM_PROMPT_TOKENS
    assert answer.usage.completion_tokens == 3 * 2 * len(STEPS)
    assert "metrics" not in answer.to_dict()


def test_several_choices_in_a_stream(client: openai.OpenAI) -> None:
    chunks = list(client.chat.completions.create(model="scripted", messages=HI, n=2, stream=True))
    for index in range(2):
        own = [chunk.choices[0] for chunk in chunks if chunk.choices[0].index == index]
        assert own[0].delta.role == "assistant"
        assert "".join(choice.delta.content or "" for choice in own) == "Hello, wörld!"
        assert own[-1].finish_reason == "stop"


@pytest.mark.parametrize("num_top", [None, 0, 2])
def test_logprobs(client: openai.OpenAI, num_top: int | None) -> None:
    asked: dict[str, Any] = {} if num_top is None else {"top_logprobs": num_top}
    answer = client.chat.completions.create(model="scripted", messages=HI, logprobs=True, **asked)
    assert answer.choices[0].logprobs is not None
    tokens = answer.choices[0].logprobs.content
    assert tokens is not None
    assert [token.token for token in tokens] == list(STEPS)
    assert tokens[2].bytes == list("wörld".encode())
    assert tokens[2].logprob == -0.25
    assert [top.token for top in tokens[2].top_logprobs] == ["wörld0", "wörld1"][: num_top or 0]


def test_every_sampling_field_reaches_the_engine(client: openai.OpenAI, engine: ScriptedEngine) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    tools: list[Any] = [{"type": "function", "function": {"name": "look", "parameters": {}}}]
    client.chat.completions.create(
        model="scripted",
        messages=HI,
        temperature=0.5,
        top_p=0.9,
        seed=11,
        stop=["\n", "END"],
        max_tokens=5,
        max_completion_tokens=9,
        presence_penalty=0.25,
        frequency_penalty=-0.5,
        tools=tools,
        prediction={"type": "content", "content": [{"type": "text", "text": "Hello"}]},
        response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
        extra_body={"top_k": 4, "min_p": 0.05, "ignore_eos": True},
    )
    sampling = engine.last.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.5, 0.9, 4, 0.05)
    assert (sampling.seed, sampling.stop, sampling.max_tokens) == (11, ("\n", "END"), 9)
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (0.25, -0.5)
    assert sampling.json_schema == schema
    assert sampling.ignore_eos is True
    assert engine.last.tools == tools
    assert engine.last.tags.prediction == "Hello"


def test_tags_reach_the_engine_and_come_back(client: openai.OpenAI, engine: ScriptedEngine) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model="scripted",
        messages=HI,
        extra_headers={
            "X-AgentSpec-Stage": "flow/caf%C3%A9%20one",
            "X-AgentSpec-Session": "s-1",
            "X-AgentSpec-Max-Draft": "0",
            "X-AgentSpec-Min-Match": "3",
            "X-AgentSpec-Learn": "0",
            "X-Request-Id": "mine-1",
        },
    )
    assert raw.headers["x-agentspec-stage"] == "flow/caf%C3%A9%20one"
    assert raw.headers["x-agentspec-stage-source"] == "header"
    assert raw.headers["x-request-id"] == "mine-1"
    assert engine.last.tags.stage == StageKey("default", ("flow", "café one"))
    assert engine.last.tags.session == "s-1"
    assert (engine.last.tags.max_draft, engine.last.tags.min_match, engine.last.tags.learn) == (0, 3, False)


def test_the_url_form_needs_no_header(url: str, engine: ScriptedEngine) -> None:
    with client_of(f"{url}/stages/flow/caf%C3%A9") as client:
        raw = client.chat.completions.with_raw_response.create(model="scripted", messages=HI)
        assert raw.headers["x-agentspec-stage-source"] == "url"
        assert engine.last.tags.stage.path == ("flow", "café")
        assert client.models.list().data[0].id == "scripted"


def test_a_client_cannot_tag_through_vllm_xargs(client: openai.OpenAI, engine: ScriptedEngine) -> None:
    forged = {"agentspec_tenant": "victim", "agentspec_stage": "theirs", "agentspec_max_draft": 7}
    client.chat.completions.create(model="scripted", messages=HI, extra_body={"vllm_xargs": forged})
    assert engine.last.tags.stage == StageKey("default", ("default",))
    assert engine.last.tags.max_draft is None


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("x-session-id", "a"),
        ("x-litellm-session-id", "b"),
        ("x-claude-code-session-id", "c"),
    ],
)
def test_sessions_that_clients_send_already(
    url: str, engine: ScriptedEngine, header: str, value: str
) -> None:
    post(url, chat_body(), **{header: value})
    assert engine.last.tags.session == value
    post(url, chat_body(), **{header: value, "x-agentspec-session": "ours"})
    assert engine.last.tags.session == "ours"


def test_a_traced_answer_tells_its_steps(url: str, engine: ScriptedEngine) -> None:
    answer = post(url, chat_body(), x_agentspec_trace="1").json()
    assert engine.last.tags.trace
    told = answer["metrics"]["speculative_decoding"]
    assert told.pop("steps") == [
        {"source": None, "tokens": [], "parents": [], "accepted": [], "own": "Hello"},
        {
            "source": "stage",
            "tokens": [", ", ". ", "wörld"],
            "parents": [-1, -1, 0],
            "accepted": [0, 2],
            "own": "!",
        },
    ]
    assert told == FIGURES
    untraced = post(url, chat_body(), x_agentspec_trace="0").json()
    assert untraced["metrics"] == {"speculative_decoding": FIGURES}
    refused = post(url, chat_body(), x_agentspec_trace="yes")
    assert refused.status_code == 400
    assert "x-agentspec-trace" in refused.json()["error"]["message"]
