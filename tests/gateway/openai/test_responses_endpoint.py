from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from pydantic import BaseModel

from agentspec.errors import ContextLengthError, EngineError, RequestError
from agentspec.stages import StageKey
from tests.gateway.support.live import TIMEOUT_S, client_of, post, serving_engine, serving_proxy
from tests.gateway.support.scripted import FIGURES, NUM_PROMPT_TOKENS, STEPS, ScriptedEngine
from tests.gateway.support.telemetry import of_stage, scrape

PATH = "/v1/responses"
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
LOOK = {"name": "look", "description": "Look it up", "parameters": {"type": "object"}, "strict": True}
CALL = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"a": 1}'}
CHAT_CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"a": 1}'}}
OPENING = "created in_progress output_item.added content_part.added"
CLOSING = "output_text.done content_part.done output_item.done"


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[openai.OpenAI]:
    with client_of(url) as opened:
        yield opened


class Filter(BaseModel):
    column: str
    value: int


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "scripted", "input": "hi", **fields}


def kinds(words: str) -> list[str]:
    return [f"response.{word}" for word in words.split()]


def test_a_whole_answer(client: openai.OpenAI, engine: ScriptedEngine) -> None:
    answer = client.responses.create(model="scripted", input="hi")
    assert (answer.object, answer.model, answer.status) == ("response", "scripted", "completed")
    assert answer.id.startswith("resp_")
    assert answer.output_text == "Hello, wörld!"
    (item,) = answer.output
    assert item.type == "message"
    assert (item.role, item.status, item.id.startswith("msg_")) == ("assistant", "completed", True)
    assert answer.usage is not None
    assert answer.usage.input_tokens == NUM_PROMPT_TOKENS
    assert answer.usage.output_tokens == 2 * len(STEPS)
    assert answer.usage.total_tokens == NUM_PROMPT_TOKENS + 2 * len(STEPS)
    assert answer.usage.input_tokens_details.cached_tokens == 0
    assert answer.usage.output_tokens_details.reasoning_tokens == 0
    assert answer.to_dict()["metrics"] == {"speculative_decoding": FIGURES}
    assert engine.last.prompt == [{"role": "user", "content": "hi"}]
    assert engine.last.sampling.temperature == 1.0
    assert engine.last.sampling.max_tokens is None


def test_every_field_reaches_the_engine_and_comes_back(client: openai.OpenAI, engine: ScriptedEngine) -> None:
    format_: Any = {"type": "json_schema", "name": "x", "schema": SCHEMA, "strict": True}
    answer = client.responses.create(
        model="scripted",
        instructions="Be short.",
        input=[{"role": "user", "content": "hi"}],
        temperature=0.5,
        top_p=0.9,
        max_output_tokens=9,
        text={"format": format_, "verbosity": "low"},
        tools=[{"type": "function", **LOOK}],
        parallel_tool_calls=False,
        metadata={"agentspec_stage": "flow/a", "mine": "yes"},
        store=True,
        truncation="auto",
        extra_body={"top_k": 4, "min_p": 0.05, "seed": 11, "stop": "END", "ignore_eos": True},
    )
    sampling = engine.last.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.5, 0.9, 4, 0.05)
    assert (sampling.seed, sampling.stop, sampling.max_tokens, sampling.n) == (11, ("END",), 9, 1)
    assert sampling.json_schema == SCHEMA
    assert sampling.ignore_eos is True
    assert engine.last.tools == [{"type": "function", "function": LOOK}]
    assert engine.last.tags.stage == StageKey("default", ("flow", "a"))
    assert engine.last.prompt == [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "hi"},
    ]
    told = answer.to_dict()
    assert told["instructions"] == "Be short."
    assert told["text"] == {"format": format_, "verbosity": "low"}
    assert told["metadata"] == {"agentspec_stage": "flow/a", "mine": "yes"}
    assert (told["temperature"], told["top_p"], told["max_output_tokens"]) == (0.5, 0.9, 9)
    assert (told["parallel_tool_calls"], told["tool_choice"]) == (False, "auto")
    assert told["tools"] == [{"type": "function", **LOOK}]
    assert (told["store"], told["background"], told["truncation"]) == (False, False, "disabled")


@pytest.mark.parametrize(
    ("format_", "schema"), [({"type": "text"}, None), ({"type": "json_object"}, {}), (None, None)]
)
def test_other_formats(
    client: openai.OpenAI, engine: ScriptedEngine, format_: Any, schema: dict[str, Any] | None
) -> None:
    client.responses.create(model="scripted", input="hi", text={"format": format_})
    assert engine.last.sampling.json_schema == schema


def test_items_become_messages(client: openai.OpenAI, engine: ScriptedEngine) -> None:
    items: list[Any] = [
        {"role": "developer", "content": "Obey."},
        {"role": "user", "content": [{"type": "input_text", "text": t} for t in ("one", "two")]},
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
        CALL,
        {**CALL, "call_id": "c2"},
        {"type": "function_call_output", "call_id": "c1", "output": "5"},
        {
            "type": "function_call_output",
            "call_id": "c2",
            "output": [{"type": "input_text", "text": "6"}],
        },
        {**CALL, "call_id": "c3"},
    ]
    client.responses.create(model="scripted", input=items)
    assert engine.last.prompt == [
        {"role": "system", "content": "Obey."},
        {"role": "user", "content": "one\ntwo"},
        {"role": "assistant", "content": "I look.", "tool_calls": [CHAT_CALL, {**CHAT_CALL, "id": "c2"}]},
        {"role": "tool", "tool_call_id": "c1", "content": "5"},
        {"role": "tool", "tool_call_id": "c2", "content": "6"},
        {"role": "assistant", "content": "", "tool_calls": [{**CHAT_CALL, "id": "c3"}]},
    ]


def test_no_tools_if_none_are_to_be_called(client: openai.OpenAI, engine: ScriptedEngine) -> None:
    client.responses.create(
        model="scripted", input="hi", tools=[{"type": "function", **LOOK}], tool_choice="none"
    )
    assert engine.last.tools is None


def test_the_events_of_a_stream(client: openai.OpenAI) -> None:
    events = list(client.responses.create(model="scripted", input="hi", stream=True))
    text = " output_text.delta" * len(STEPS)
    assert [event.type for event in events] == kinds(f"{OPENING}{text} {CLOSING} completed")
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.delta for event in events if event.type == "response.output_text.delta"] == list(STEPS)
    first, last = events[0], events[-1]
    assert first.type == "response.created"
    assert (first.response.status, first.response.output, first.response.usage) == ("in_progress", [], None)
    assert last.type == "response.completed"
    assert last.response.id == first.response.id
    assert last.response.output_text == "Hello, wörld!"
    assert last.response.usage is not None
    assert last.response.usage.output_tokens == 2 * len(STEPS)
    assert last.response.to_dict()["metrics"] == {"speculative_decoding": FIGURES}


def test_a_stream_and_a_whole_answer_end_the_same(url: str) -> None:
    whole = post(url, body(), PATH).json()
    last = post(url, body(stream=True), PATH).text.strip().split("\n\n")[-1]
    streamed = json.loads(last.partition("data: ")[2])["response"]
    changing = {"id": "", "created_at": 0, "completed_at": 0}
    for response in (whole, streamed):
        response.update(changing)
        response["output"][0]["id"] = ""
    assert whole == streamed


def test_the_client_builds_the_answer_up(client: openai.OpenAI) -> None:
    with client.responses.stream(model="scripted", input="hi") as stream:
        snapshots = [event.snapshot for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert snapshots == ["Hello", "Hello, ", "Hello, wörld", "Hello, wörld!"]
    assert final.output_text == "Hello, wörld!"


@pytest.mark.parametrize("stream", [False, True])
def test_a_parsed_answer(stream: bool) -> None:
    engine = ScriptedEngine(steps=('{"column": ', '"price", "value"', ": 10}"))
    with serving_engine(engine) as root, client_of(root) as client:
        if stream:
            with client.responses.stream(model="scripted", input="hi", text_format=Filter) as events:
                parsed = events.get_final_response().output_parsed
        else:
            parsed = client.responses.parse(model="scripted", input="hi", text_format=Filter).output_parsed
    assert parsed == Filter(column="price", value=10)
    assert engine.last.sampling.json_schema is not None
    assert set(engine.last.sampling.json_schema["properties"]) == {"column", "value"}


def test_an_answer_that_was_too_long() -> None:
    with serving_engine(ScriptedEngine(end="length")) as root, client_of(root) as client:
        whole = client.responses.create(model="scripted", input="hi", max_output_tokens=8)
        last = list(client.responses.create(model="scripted", input="hi", stream=True))[-1]
    assert last.type == "response.incomplete"
    for response in (whole, last.response):
        assert response.status == "incomplete"
        assert response.incomplete_details is not None
        assert response.incomplete_details.reason == "max_output_tokens"
        assert response.output[0].status == "incomplete"
        assert response.output_text == "Hello, wörld!"


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs(url: str, stream: bool) -> None:
    asked = body(include=["message.output_text.logprobs"], top_logprobs=2, stream=stream)
    answer = post(url, asked, PATH)
    if stream:
        events = [json.loads(part.partition("data: ")[2]) for part in answer.text.strip().split("\n\n")]
        deltas = [event for event in events if event["type"] == "response.output_text.delta"]
        assert [event["logprobs"][0]["token"] for event in deltas] == list(STEPS)
        response = events[-1]["response"]
    else:
        response = answer.json()
    tokens = response["output"][0]["content"][0]["logprobs"]
    assert [token["token"] for token in tokens] == list(STEPS)
    assert tokens[2]["bytes"] == list("wörld".encode())
    assert [top["token"] for top in tokens[2]["top_logprobs"]] == ["wörld0", "wörld1"]


IMAGE = {"role": "user", "content": [{"type": "input_image", "image_url": "data:"}]}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": 5}, "input"),
        ({"input": ["hi"]}, "input[0]"),
        ({"input": [{"content": "hi"}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": 5}]}, "input[0].content"),
        ({"input": [{"role": "user", "content": "a"}, IMAGE]}, "input[1].content[0]"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0].type"),
        ({"input": [{**CALL, "call_id": None}]}, "input[0].call_id"),
        ({"input": [{"type": "function_call_output", "output": "5"}]}, "input[0].call_id"),
        ({"instructions": ["hi"]}, "instructions"),
        ({"temperature": "hot"}, "temperature"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
        ({"tools": [{"type": None}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "name": "look"}}, "tool_choice"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"metadata": 5}, "metadata"),
        ({"background": True}, "background"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": {"id": "conv_1"}}, "conversation"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt"),
        ({"messages": [{"role": "user", "content": "hi"}]}, "messages"),
        ({"max_tokens": 5}, "max_tokens"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
    ],
)
def test_what_is_refused_names_the_field(url: str, fields: dict[str, Any], param: str) -> None:
    answer = post(url, body(**fields), PATH)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == param
    assert param in error["message"]


def test_null_is_the_same_as_absent(url: str, engine: ScriptedEngine) -> None:
    names = (
        "instructions temperature top_p max_output_tokens text tools tool_choice metadata include stream"
        " previous_response_id background parallel_tool_calls"
    )
    answer = post(url, body(**dict.fromkeys(names.split())), PATH)
    assert answer.status_code == httpx.codes.OK
    assert answer.json()["metadata"] == {}
    assert engine.last.sampling.temperature == 1.0


@pytest.mark.parametrize("stream", [False, True])
def test_the_engine_refuses(stream: bool) -> None:
    with serving_engine(ScriptedEngine(refusal=ContextLengthError("9000 tokens do not fit"))) as root:
        answer = post(root, body(stream=stream), PATH)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded"


def test_an_engines_refusal_names_the_field_of_this_api() -> None:
    refusals = {
        "input": ContextLengthError("9000 tokens of these messages: too many"),
        "max_output_tokens": ContextLengthError("9 and max_tokens=5 exceed 8", param="max_tokens"),
        "text.format": RequestError("response_format: a bad schema", param="response_format"),
        "top_p": RequestError("top_p must be above 0", param="top_p"),
    }
    messages = []
    for param, refusal in refusals.items():
        with serving_engine(ScriptedEngine(refusal=refusal)) as root:
            error = post(root, body(), PATH).json()["error"]
        assert error["param"] == param
        messages.append(error["message"])
    assert messages == [
        "9000 tokens of these messages: too many",
        "9 and max_output_tokens=5 exceed 8",
        "text.format: a bad schema",
        "top_p must be above 0",
    ]


def test_an_engine_error_midway_is_an_event_and_the_end() -> None:
    with serving_engine(ScriptedEngine(failure=EngineError("a decode step failed"))) as root:
        with client_of(root) as client:
            events = list(client.responses.create(model="scripted", input="hi", stream=True))
        whole = post(root, body(), PATH)
    last = events[-1]
    assert last.type == "response.failed"
    assert last.sequence_number == len(events) - 1
    assert last.response.status == "failed"
    assert last.response.error is not None
    assert (last.response.error.code, last.response.error.message) == ("server_error", "a decode step failed")
    assert whole.status_code == 500


def test_an_engine_that_stops_short_is_no_whole_answer() -> None:
    with serving_engine(ScriptedEngine(steps=())) as root:
        for stream in (False, True):
            assert post(root, body(stream=stream), PATH).json()["error"]["code"] == "engine_error"


def test_an_unknown_model_and_a_wrong_method(url: str) -> None:
    assert post(url, body(model="gpt-9"), PATH).json()["error"]["code"] == "model_not_found"
    answer = httpx.get(url + PATH)
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
    assert httpx.get(f"{url}{PATH}/resp_1").status_code == 404


def test_a_client_that_leaves_midway_frees_the_engine() -> None:
    engine = ScriptedEngine(is_endless=True)
    with serving_engine(engine) as root:
        with httpx.stream("POST", root + PATH, json=body(stream=True)) as answer:
            assert next(answer.iter_raw())
        assert engine.released.wait(TIMEOUT_S)


def test_a_stream_that_the_end_of_the_server_breaks_off() -> None:
    engine = ScriptedEngine(is_endless=True)
    with client_of("http://localhost") as client:
        with serving_engine(engine, grace_s=0.1) as root:
            stream = client.with_options(base_url=f"{root}/v1").responses.create(**body(stream=True))
            first = next(iter(stream))
        with pytest.raises(openai.APIError, match="shutting down"):
            list(stream)
    assert first.type == "response.created"
    assert engine.released.is_set()


def test_an_error_that_breaks_a_stream_off_is_an_event_with_a_type() -> None:
    with httpx.Client(trust_env=False, timeout=TIMEOUT_S) as client:
        with serving_engine(ScriptedEngine(is_endless=True), grace_s=0.1) as root:
            request = client.build_request("POST", root + PATH, json=body(stream=True))
            lines = client.send(request, stream=True).iter_lines()
            assert next(lines) == "event: response.created"
        *_, name, data, _ = lines
    told = json.loads(data.removeprefix("data: "))
    assert (name, told["type"]) == ("event: error", "error")
    assert "shutting down" in told["message"] == told["error"]["message"]


def test_a_gateway_in_front_counts_what_it_hears(url: str) -> None:
    with serving_proxy(url) as front:
        for stream in (False, True):
            assert post(front, body(stream=stream), PATH, x_agentspec_stage="flow/b").status_code == 200
        samples = scrape(front)
    assert of_stage(samples, "agentspec_requests_total", "flow/b") == 2
    assert of_stage(samples, "agentspec_prompt_tokens_total", "flow/b") == 2 * NUM_PROMPT_TOKENS
    assert of_stage(samples, "agentspec_output_tokens_total", "flow/b") == 2 * 2 * len(STEPS)
    assert of_stage(samples, "agentspec_accepted_tokens_total", "flow/b") == 2 * 6
