from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from typing import Any

import openai
import pytest

from agentspec.errors import ContextLengthError
from agentspec.gateway.openai.answer_forms import CompletionForm
from agentspec.generation import GenerationDelta, GenerationRequest, ModelCard, TokenLogprob, TopLogprob
from tests.gateway.support.live import client_of, post, serving_engine
from tests.gateway.support.scripted import NUM_PROMPT_TOKENS, STEPS, ScriptedEngine

PATH = "/v1/completions"


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[openai.OpenAI]:
    with client_of(url) as opened:
        yield opened


def test_a_whole_answer(client: openai.OpenAI, engine: ScriptedEngine) -> None:
    answer = client.completions.create(model="scripted", prompt="once")
    assert answer.object == "text_completion"
    assert answer.choices[0].text == "Hello, wörld!"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.to_dict()["metrics"]["speculative_decoding"]["num_spec_steps"] == 4
    assert engine.last.prompt == "once"
    assert engine.last.sampling.max_tokens == 16  # OpenAI's default


def test_a_stream(client: openai.OpenAI) -> None:
    stream = client.completions.create(
        model="scripted", prompt="once", stream=True, stream_options={"include_usage": True}
    )
    *chunks, last = list(stream)
    assert [chunk.choices[0].text for chunk in chunks] == list(STEPS)
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert last.usage is not None
    assert last.usage.total_tokens == NUM_PROMPT_TOKENS + 2 * len(STEPS)


@pytest.mark.parametrize(
    ("prompt", "seen"),
    [
        ("a", ["a"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2, 3], [[1, 2, 3]]),
        ([[1, 2], [3]], [[1, 2], [3]]),
    ],
)
def test_every_form_of_prompt(
    client: openai.OpenAI, engine: ScriptedEngine, prompt: Any, seen: list[Any]
) -> None:
    engine.requests.clear()
    answer = client.completions.create(model="scripted", prompt=prompt, n=2)
    assert [request.prompt for request in engine.requests] == seen
    assert len({request.request_id for request in engine.requests}) == len(seen)
    assert [choice.index for choice in answer.choices] == list(range(2 * len(seen)))
    assert {choice.text for choice in answer.choices} == {"Hello, wörld!"}
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == NUM_PROMPT_TOKENS * len(seen)


def test_several_prompts_in_a_stream(client: openai.OpenAI) -> None:
    texts: dict[int, str] = {}
    for chunk in client.completions.create(model="scripted", prompt=["a", "b", "c"], stream=True):
        choice = chunk.choices[0]
        texts[choice.index] = texts.get(choice.index, "") + choice.text
    assert texts == dict.fromkeys(range(3), "Hello, wörld!")


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_carry_text_offsets(url: str, client: openai.OpenAI, stream: bool) -> None:
    made = client.completions.create(model="scripted", prompt="a", logprobs=1, stream=stream)
    choices = [chunk.choices[0] for chunk in made] if stream else [made.choices[0]]
    tokens = [token for choice in choices for token in choice.logprobs.tokens]
    offsets = [offset for choice in choices for offset in choice.logprobs.text_offset]
    tops = [top for choice in choices for top in choice.logprobs.top_logprobs]
    assert tokens == list(STEPS)
    assert offsets == [0, 5, 7, 12]
    assert tops[0] == {"Hello0": -0.25, "Hello": -0.25}  # the token itself is always included


def test_of_two_alternatives_with_one_text_the_likelier_is_shown() -> None:
    top = tuple(TopLogprob(*one) for one in ((1, "\ufffd", -1.0), (2, "\ufffd", -2.0), (3, "x", -3.0)))
    delta = GenerationDelta(0, "?", (2,), 1, logprobs=(TokenLogprob(2, "\ufffd", -2.0, top),))
    chunk = CompletionForm().chunk(0, delta, has_logprobs=True)
    assert chunk["logprobs"]["top_logprobs"] == [{"\ufffd": -1.0, "x": -3.0}]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("prompt", None),
        ("prompt", []),
        ("prompt", [[]]),
        ("prompt", ["a", 1]),
        ("prompt", [1, True]),
        ("prompt", [1, -2]),
        ("prompt", [2**31]),
        ("prompt", ["a"] * 129),
        ("prompt", {"text": "a"}),
        ("echo", True),
        ("suffix", "tail"),
        ("best_of", 3),
        ("logit_bias", [[5, 1]]),
        ("logprobs", True),
        ("logprobs", 21),
    ],
)
def test_what_is_refused_names_the_field(url: str, field: str, value: Any) -> None:
    answer = post(url, {"model": "scripted", "prompt": "a", field: value}, PATH)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == field
    assert field in error["message"]
    assert error["type"] == "invalid_request_error"


def test_many_prompts_at_once(url: str) -> None:
    answer = post(url, {"prompt": [f"p{i}" for i in range(128)], "model": "scripted"}, PATH)
    assert answer.status_code == 200
    assert len(answer.json()["choices"]) == 128


class PickyEngine(ScriptedEngine):
    """An engine that rejects the prompt ``bad`` and never responds to others."""

    async def generate(self, request: GenerationRequest) -> AsyncIterator[GenerationDelta]:
        if request.prompt == "bad":
            raise ContextLengthError("too long", param="prompt")
        async with aclosing(super().generate(request)) as deltas:
            async for delta in deltas:
                yield delta


def test_one_failing_prompt_ends_the_answer_and_frees_the_others() -> None:
    engine = PickyEngine(is_silent=True)
    with serving_engine(engine) as root:
        answer = post(root, {"prompt": ["good", "bad"]}, PATH)
        assert engine.released.is_set()
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded"


def token(raw: bytes) -> TokenLogprob:
    return TokenLogprob(1, raw.decode("utf-8", "replace") or "<|end|>", -1.0, (), raw)


@pytest.mark.parametrize(
    ("parts", "offsets"),
    [
        ([b"a", b"bc", b"d"], [0, 1, 3]),
        (["é".encode(), b"x"], [0, 1]),
        ([b"a", b"\xf0\x9f", b"\x99", b"\x82", b"b"], [0, 1, 1, 1, 2]),
        ([b"\xf0\x9f\x99\x82 \xf0", b"\x9f\x99\x82", b"b"], [0, 2, 3]),
        ([b"a", b"\xff", b"b"], [0, 1, 2]),
        ([b"\xf0\x9f", b"b", b"c"], [0, 0, 2]),
        ([b"a", b"", b"b"], [0, 1, 1]),
    ],
)
def test_offsets_of_tokens_that_are_parts_of_characters(parts: list[bytes], offsets: list[int]) -> None:
    """An offset is a position in the text that the client gets, in one chunk or in many."""
    tokens = [token(raw) for raw in parts]
    whole = CompletionForm().chunk(
        0, GenerationDelta(0, "x", (), 1, logprobs=tuple(tokens)), has_logprobs=True
    )
    assert whole is not None
    assert whole["logprobs"]["text_offset"] == offsets
    form = CompletionForm()
    deltas = [GenerationDelta(0, "x", (), 1, logprobs=(one,)) for one in tokens]
    chunks = [form.chunk(0, delta, has_logprobs=True) for delta in deltas]
    assert [chunk["logprobs"]["text_offset"][0] for chunk in chunks if chunk] == offsets


def test_more_outputs_than_the_engine_could_ever_hold() -> None:
    engine = ScriptedEngine(model=ModelCard("scripted", 4096, max_choices=272))
    with serving_engine(engine) as root:
        for body, path in (
            ({"prompt": ["a"] * 128, "n": 4}, "/v1/completions"),
            ({"prompt": ["a"] * 3, "n": 100}, "/v1/completions"),
        ):
            answer = post(root, body, path)
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, "n")
            assert "at most 272 at a time" in answer.json()["error"]["message"]
        assert engine.requests == []
        assert post(root, {"prompt": ["a"] * 68, "n": 4}, "/v1/completions").status_code == 200
