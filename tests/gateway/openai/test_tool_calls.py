from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from agentspec.generation import ThinkTags
from tests.gateway.support.live import client_of, post, serving_engine
from tests.gateway.support.scripted import ScriptedEngine

CALL = '<tool_call>\n{"name": "look", "arguments": {"größe": 1}}\n</tool_call>'
LOOK = ("look", '{"größe": 1}')
LOOK_TOOL: dict[str, Any] = {"name": "look", "parameters": {"type": "object"}}
CHAT_TOOLS: list[Any] = [{"type": "function", "function": LOOK_TOOL}]
TOOLS: list[Any] = [{"type": "function", **LOOK_TOOL}]
HI: list[Any] = [{"role": "user", "content": "hi"}]
# text, a call with split tags, white space, a second call
STEPS = ("I ", "look.\n", "<tool", "_call>\n" + CALL[12:30], CALL[30:-5], CALL[-5:] + "\n", CALL)


@pytest.fixture(scope="module")
def client() -> Iterator[openai.OpenAI]:
    with serving_engine(ScriptedEngine(steps=STEPS)) as root, client_of(root) as opened:
        yield opened


# one piece of a call per step, and a piece of text behind it
PIECES = (
    "<tool_call>",
    '{"name": "look"',
    ', "arguments": {"a"',
    ': "\\ud83d',
    '"',
    "}}",
    "</tool_call>",
    " Done.",
)


def test_a_call_is_streamed_as_it_comes() -> None:
    with serving_engine(ScriptedEngine(steps=PIECES)) as root, client_of(root) as client:
        deltas = [chunk.choices[0].delta for chunk in client.chat.completions.create(**asked(stream=True))]
        whole = client.chat.completions.create(**asked()).choices[0]
    first, *more = [call for delta in deltas for call in delta.tool_calls or ()]
    assert first.function is not None
    assert (first.index, first.type, first.function.name) == (0, "function", "look")
    assert first.id
    assert first.function.arguments == '{"a"'
    assert [call.model_dump(exclude_unset=True) for call in more] == [
        {"index": 0, "function": {"arguments": text}} for text in (': "\\ud83d', '"', "}")
    ]
    assert "".join(delta.content or "" for delta in deltas) == whole.message.content == " Done."
    (call,) = whole.message.tool_calls or ()
    assert call.type == "function"
    assert call.function.arguments == '{"a": "\\ud83d"}'


def test_a_call_is_a_stream_of_events_in_responses() -> None:
    with serving_engine(ScriptedEngine(steps=PIECES[:-1])) as root, client_of(root) as client:
        events: list[Any] = list(client.responses.create(**responses(stream=True)))
        (whole,) = client.responses.create(**responses()).output
    kinds = [event.type.removeprefix("response.") for event in events[2:]]
    deltas = ["function_call_arguments.delta"] * 4
    assert kinds == [
        *("output_item.added", *deltas, "function_call_arguments.done"),
        *("output_item.done", "completed"),
    ]
    assert events[2].item.arguments == ""
    assert [event.delta for event in events[3:7]] == ['{"a"', ': "\\ud83d', '"', "}"]
    (item,) = events[-1].response.output
    assert (item.name, item.arguments, item.status) == ("look", '{"a": "\\ud83d"}', "completed")
    assert whole.type == "function_call"
    assert whole.arguments == item.arguments


CUT = (*PIECES[:3],)


def test_a_call_that_the_length_limit_cuts_off() -> None:
    with serving_engine(ScriptedEngine(steps=CUT, end="length")) as root, client_of(root) as client:
        whole = client.chat.completions.create(**asked()).choices[0]
        chunks = list(client.chat.completions.create(**asked(stream=True)))
        response = client.responses.create(**responses())
        last: Any = list(client.responses.create(**responses(stream=True)))[-1]
    (call,) = whole.message.tool_calls or ()
    assert call.type == "function"
    assert (whole.finish_reason, call.function.arguments) == ("length", '{"a"')
    assert chunks[-1].choices[0].finish_reason == "length"
    for ended in (response, last.response):
        assert ended.status == "incomplete"
        (item,) = ended.output
        assert (item.type, item.status, item.arguments) == ("function_call", "incomplete", '{"a"')


def responses(**fields: Any) -> dict[str, Any]:
    return {"model": "scripted", "input": "hi", "tools": TOOLS, **fields}


THOUGHT = ("<thi", "nk>I could ", CALL, " but no.</think>", "Hello", " you")
REASONING = f"I could {CALL} but no."


@pytest.mark.parametrize("tools", [None, CHAT_TOOLS])
def test_reasoning_in_a_chat(tools: Any) -> None:
    engine = ScriptedEngine(steps=THOUGHT, think_tags="known")
    with serving_engine(engine) as root, client_of(root) as client:
        whole = client.chat.completions.create(**asked(tools=tools)).choices[0]
        chunks = list(client.chat.completions.create(**asked(tools=tools, stream=True)))
    assert whole.finish_reason == chunks[-1].choices[0].finish_reason == "stop"
    assert whole.message.content == "Hello you"
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert [delta.content for delta in deltas if delta.content] == ["Hello", " you"]
    for name in ("reasoning", "reasoning_content"):
        assert getattr(whole.message, name) == REASONING
        assert "".join(getattr(delta, name, "") for delta in deltas) == REASONING
    assert not whole.message.tool_calls


@pytest.mark.parametrize("stream", [False, True])
def test_reasoning_in_a_response(stream: bool) -> None:
    steps = ("a ", "b</think>", *(() if stream else ("\n", CALL)))
    engine = ScriptedEngine(steps=steps, think_tags="open")
    with serving_engine(engine) as root, client_of(root) as client:
        if stream:
            with client.responses.stream(**responses()) as events:
                kinds = [event.type.removeprefix("response.") for event in events]
                output = events.get_final_response().output
            text = ["reasoning_text.delta"] * 2 + ["reasoning_text.done"]
            assert kinds[2:] == [
                *("output_item.added", "content_part.added", *text, "content_part.done"),
                *("output_item.done", "completed"),
            ]
        else:
            output = client.responses.create(**responses()).output
            assert [item.type for item in output] == ["reasoning", "function_call"]
    reasoning: Any = output[0]
    assert (reasoning.type, reasoning.status, reasoning.content[0].text) == ("reasoning", "completed", "a b")


@pytest.mark.parametrize("think_tags", ["unknown", "known", "open"])
def test_an_output_that_is_all_reasoning_has_no_content(think_tags: ThinkTags) -> None:
    engine = ScriptedEngine(steps=("<think>", "a", "b"), think_tags=think_tags)
    with serving_engine(engine) as root, client_of(root) as client:
        message = client.chat.completions.create(**asked()).choices[0].message
    assert message.content == (None if think_tags != "unknown" else "<think>ab")
    assert getattr(message, "reasoning_content", None) == ("ab" if think_tags != "unknown" else None)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "asked_for"),
    [
        ("/v1/chat/completions", {"messages": HI}),
        ("/v1/completions", {"prompt": "hi"}),
        ("/v1/responses", {"input": "hi"}),
    ],
)
def test_half_a_surrogate_pair_is_no_error(path: str, asked_for: dict[str, Any], stream: bool) -> None:
    with serving_engine(ScriptedEngine(steps=("a \ud83d", " b"))) as root:
        answer = post(root, {"model": "scripted", "stream": stream, **asked_for}, path)
    assert answer.status_code == 200
    assert "\\ud83d" in answer.text
    assert "error" not in answer.text.replace('"error":null', "")


def asked(**fields: Any) -> dict[str, Any]:
    return {"model": "scripted", "messages": HI, "tools": CHAT_TOOLS, **fields}


@pytest.mark.parametrize("fields", [{"tools": None}, {"tool_choice": "none"}])
def test_without_tools_it_is_text(client: openai.OpenAI, fields: dict[str, Any]) -> None:
    chat = client.chat.completions.create(**asked(**fields)).choices[0]
    assert (chat.message.content, chat.finish_reason) == ("".join(STEPS), "stop")
    response = client.responses.create(model="scripted", input="hi", **{"tools": TOOLS, **fields})
    assert response.output_text == "".join(STEPS)


def test_calls_are_input_again() -> None:
    engine = ScriptedEngine(steps=(CALL,))
    with serving_engine(engine) as root, client_of(root) as own:
        (call,) = own.responses.create(model="scripted", input="hi", tools=TOOLS).output
        assert call.type == "function_call"
        result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "5"}
        own.responses.create(model="scripted", input=[*HI, call.to_dict(), result], tools=TOOLS)
    assistant, tool = engine.last.prompt[1:]
    assert assistant["tool_calls"][0]["id"] == tool["tool_call_id"] == call.call_id
    assert json.loads(assistant["tool_calls"][0]["function"]["arguments"]) == {"größe": 1}


TWO = (CALL, CALL)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("wanted", "num_calls"), [(False, 1), (True, 2), (None, 2)])
def test_at_most_one_call_if_they_may_not_be_parallel(stream: bool, wanted: Any, num_calls: int) -> None:
    with serving_engine(ScriptedEngine(steps=TWO)) as root, client_of(root) as client:
        if stream:
            with client.chat.completions.stream(**asked(parallel_tool_calls=wanted)) as chunks:
                chat = chunks.get_final_completion().choices[0]
            with client.responses.stream(**responses(parallel_tool_calls=wanted)) as events:
                response = events.get_final_response()
        else:
            chat = client.chat.completions.create(**asked(parallel_tool_calls=wanted)).choices[0]
            response = client.responses.create(**responses(parallel_tool_calls=wanted))
    assert chat.finish_reason == "tool_calls"
    assert len(chat.message.tool_calls or ()) == num_calls
    assert [item.type for item in response.output] == ["function_call"] * num_calls


@pytest.mark.parametrize("stream", [False, True])
def test_reasoning_is_left_out_on_request(stream: bool) -> None:
    engine = ScriptedEngine(steps=("<think>a", "b</think>", "Hello"), think_tags="known")
    with serving_engine(engine) as root:
        body = {"model": "scripted", "messages": HI, "include_reasoning": False, "stream": stream}
        text = post(root, body).text
    assert "reasoning" not in text
    assert "Hello" in text
    assert "b<" not in text


FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}


@pytest.mark.parametrize(
    ("fields", "has_schema", "has_grammar"),
    [
        ({}, False, False),
        ({"response_format": FORMAT}, True, True),
        ({"response_format": {"type": "json_object"}}, True, True),
        ({"response_format": FORMAT, "tool_choice": "none"}, True, False),
        ({"response_format": FORMAT, "tools": None}, True, False),
        ({"response_format": FORMAT, "tool_choice": "required"}, False, True),
        ({"tool_choice": "required"}, False, True),
    ],
)
def test_tools_and_a_form_of_the_answer(fields: dict[str, Any], has_schema: bool, has_grammar: bool) -> None:
    engine = ScriptedEngine(steps=(CALL,))
    with serving_engine(engine) as root, client_of(root) as client:
        message = client.chat.completions.create(**asked(**fields)).choices[0].message
    sampling = engine.last.sampling
    assert (sampling.json_schema is not None, sampling.grammar is not None) == (has_schema, has_grammar)
    assert bool(message.tool_calls) == bool(engine.last.tools)


def test_a_form_in_a_clients_own_words_and_tools() -> None:
    engine = ScriptedEngine(steps=(CALL,))
    with serving_engine(engine) as root, client_of(root) as client:
        answer = client.chat.completions.create(**asked(extra_body={"guided_regex": "a+"}))
        assert engine.last.sampling.written is not None
        assert engine.last.sampling.grammar is not None
        assert answer.choices[0].message.tool_calls
        with pytest.raises(openai.BadRequestError, match="forces a call, and guided_regex another output"):
            client.chat.completions.create(**asked(tool_choice="required", extra_body={"guided_regex": "a+"}))
