from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from agentspec.gateway.openai.tools import ToolCall, ToolCallReader
from tests.gateway.support.live import client_of, serving_engine
from tests.gateway.support.scripted import ScriptedEngine

CALL = '<tool_call>\n{"name": "look", "arguments": {"größe": 1}}\n</tool_call>'
CLOSE = "</tool_call>"
LOOK = ("look", '{"größe": 1}')
LOOK_TOOL: dict[str, Any] = {"name": "look", "parameters": {"type": "object"}}
CHAT_TOOLS: list[Any] = [{"type": "function", "function": LOOK_TOOL}]
TOOLS: list[Any] = [{"type": "function", **LOOK_TOOL}]
HI: list[Any] = [{"role": "user", "content": "hi"}]
# text, a call with split tags, white space, a second call
STEPS = ("I ", "look.\n", "<tool", "_call>\n" + CALL[12:30], CALL[30:-5], CALL[-5:] + "\n", CALL)


def read(text: str, sizes: Iterator[int]) -> list[str | tuple[str, str]]:
    """Return the pieces, with adjacent texts joined."""
    reader, pieces = ToolCallReader(), []
    while text:
        size = next(sizes)
        pieces += reader.push(text[:size])
        text = text[size:]
    pieces += reader.flush()
    joined: list[str | tuple[str, str]] = []
    for piece in pieces:
        if isinstance(piece, ToolCall):
            joined.append((piece.name, piece.arguments))
        elif joined and isinstance(joined[-1], str):
            joined[-1] += piece
        else:
            joined.append(piece)
    assert reader.num_calls == sum(isinstance(piece, ToolCall) for piece in pieces)
    return joined


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("plain", ["plain"]),
        (" \n text, <b> and <tool_cal \n", [" \n text, <b> and <tool_cal \n"]),
        (CALL, [LOOK]),
        (f"\n\n{CALL}\n", [LOOK]),
        (f"I look.\n{CALL}\n{CALL}", ["I look.", LOOK, LOOK]),
        (f"{CALL} and more", [LOOK, " and more"]),
        (f"</tool_call>{CALL}", ["</tool_call>", LOOK]),
        ('<tool_call>{"name": "now"}</tool_call>', [("now", "{}")]),
        ('<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', [("f", '{"a": 1}')]),
        (CALL.removesuffix("</tool_call>"), [LOOK]),
        (CALL[:-30], [CALL[:-30]]),
        (
            f'<tool_call>{{"name": "<\\"/tool_call>{CLOSE}"}}{CLOSE} {CALL}',
            [(f'<"/tool_call>{CLOSE}', "{}"), LOOK],
        ),
        (f'<tool_call>{{"name": "a{CLOSE} {CALL}', [f'<tool_call>{{"name": "a{CLOSE}', LOOK]),
        (f'<tool_call>{{"name": "a{CLOSE} text', [f'<tool_call>{{"name": "a{CLOSE} text']),
        (f"<tool_call>{{broken</tool_call> {CALL}", ["<tool_call>{broken</tool_call>", LOOK]),
        ("<tool_call>[1]</tool_call>", ["<tool_call>[1]</tool_call>"]),
        ('<tool_call>{"name": 5}</tool_call>', ['<tool_call>{"name": 5}</tool_call>']),
        ("<tool_call>" + "[" * 100_000 + "</tool_call>", ["<tool_call>" + "[" * 100_000 + "</tool_call>"]),
    ],
)
def test_however_a_text_comes_in(text: str, expected: list[Any]) -> None:
    assert read(text, iter(lambda: len(text), 0)) == expected
    if len(text) < 1000:
        assert read(text, iter(lambda: 1, 0)) == expected
        rng = random.Random(3)
        for _ in range(20):
            assert read(text, iter(lambda: rng.randint(1, 12), 0)) == expected


def test_text_is_not_held_back() -> None:
    reader = ToolCallReader()
    assert [reader.push(text) for text in ("SELECT ", "a < b", "<", "t", " ", "x")] == [
        ["SELECT"],
        [" a < b"],
        [],
        [],
        ["<t"],
        [" x"],
    ]


@pytest.fixture(scope="module")
def client() -> Iterator[openai.OpenAI]:
    with serving_engine(ScriptedEngine(steps=STEPS)) as root, client_of(root) as opened:
        yield opened


def test_calls_in_a_chat(client: openai.OpenAI) -> None:
    choice = client.chat.completions.create(model="scripted", messages=HI, tools=CHAT_TOOLS).choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "I look."
    calls: Any = choice.message.tool_calls
    assert [(call.type, call.function.name, call.function.arguments) for call in calls] == [
        ("function", *LOOK)
    ] * 2
    assert len({call.id for call in calls}) == 2


def test_calls_in_the_chunks_of_a_chat(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model="scripted", messages=HI, tools=CHAT_TOOLS, n=2) as stream:
        final = stream.get_final_completion()
    for choice in final.choices:
        assert choice.finish_reason == "tool_calls"
        assert choice.message.content == "I look."
        calls: Any = choice.message.tool_calls
        assert [call.function.arguments for call in calls] == [LOOK[1]] * 2


def test_a_mere_call_has_no_content() -> None:
    with serving_engine(ScriptedEngine(steps=(CALL,))) as root, client_of(root) as client:
        message = client.chat.completions.create(**asked()).choices[0].message
        cut = ScriptedEngine(steps=(CALL[:-30],), end="length")
    assert message.content is None
    assert message.tool_calls is not None
    with serving_engine(cut) as root, client_of(root) as client:
        choice = client.chat.completions.create(**asked()).choices[0]
    assert (choice.finish_reason, choice.message.content) == ("length", CALL[:-30])


def asked(**fields: Any) -> dict[str, Any]:
    return {"model": "scripted", "messages": HI, "tools": CHAT_TOOLS, **fields}


@pytest.mark.parametrize("fields", [{"tools": None}, {"tool_choice": "none"}])
def test_without_tools_it_is_text(client: openai.OpenAI, fields: dict[str, Any]) -> None:
    chat = client.chat.completions.create(**asked(**fields)).choices[0]
    assert (chat.message.content, chat.finish_reason) == ("".join(STEPS), "stop")
    response = client.responses.create(model="scripted", input="hi", **{"tools": TOOLS, **fields})
    assert response.output_text == "".join(STEPS)


def test_calls_in_a_response(client: openai.OpenAI) -> None:
    message, *calls = client.responses.create(model="scripted", input="hi", tools=TOOLS).output
    assert message.type == "message"
    assert message.content[0].to_dict()["text"] == "I look."
    for call in calls:
        assert call.type == "function_call"
        assert (call.name, call.arguments, call.status) == (*LOOK, "completed")
    assert len(calls) == 2


def test_calls_in_the_events_of_a_response(client: openai.OpenAI) -> None:
    with client.responses.stream(model="scripted", input="hi", tools=TOOLS) as stream:
        events = list(stream)
        final = stream.get_final_response()
    of_call = ["output_item.added", "function_call_arguments.delta", "function_call_arguments.done"]
    of_call = [f"response.{name}" for name in [*of_call, "output_item.done"]]
    assert [event.type for event in events][-9:] == [*of_call, *of_call, "response.completed"]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    added: list[Any] = [event for event in events if event.type == "response.output_item.added"]
    done: list[Any] = [event for event in events if event.type == "response.output_item.done"]
    assert [event.output_index for event in added] == [event.output_index for event in done] == [0, 1, 2]
    assert [event.item.id for event in added] == [event.item.id for event in done]
    assert [item.id for item in final.output] == [event.item.id for event in done]
    assert [item.type for item in final.output] == ["message", "function_call", "function_call"]


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
