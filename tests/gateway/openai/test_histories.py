# ruff: noqa: E501  (one row per line)
"""Histories as agents keep them: every turn that some API has answered is input again."""

from __future__ import annotations

import json
import typing
from typing import Any

import pytest
from openai.types.responses import ResponseInputItemParam, ResponseOutputItem
from openai.types.responses.tool_param import ToolParam

from agentspec.errors import RequestError
from agentspec.gateway.openai.messages import MAX_NAMES, LeftOut, read_messages
from agentspec.gateway.openai.responses_input import CALLS, LEFT_OUT_ITEMS, OUTPUTS, read_input
from agentspec.gateway.openai.tools import read_tools
from tests.gateway.support.live import chat_body, post
from tests.gateway.support.scripted import ScriptedEngine

USER = {"role": "user", "content": "hi"}
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"a": 1}'}}
THOUGHT = {"type": "thinking", "thinking": "hm", "signature": "x"}
IMAGE = {"type": "image_url", "image_url": {"url": "data:,"}}
LEFT_OUT = "x-agentspec-left-out"


def call(name: str, arguments: str, call_id: Any = "c1") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def answered(**members: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": "", **members}


def result(text: str, **members: Any) -> dict[str, Any]:
    return {"role": "tool", "content": text, **members}


@pytest.mark.parametrize("role", ["system", "developer", "user", "assistant", "tool", "function"])
@pytest.mark.parametrize(
    ("content", "text"),
    [
        ({}, ""),
        ({"content": None}, ""),
        ({"content": ""}, ""),
        ({"content": []}, ""),
        ({"content": [{"type": "text", "text": None}]}, ""),
        ({"content": ["a", "b"]}, "a\nb"),
        ({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, "a\nb"),
        ({"content": [{"type": "input_text", "text": "a"}]}, "a"),
        ({"content": [{"type": "output_text", "text": "a", "annotations": [], "logprobs": []}]}, "a"),
        ({"content": [{"type": "refusal", "refusal": "no"}]}, "no"),
        ({"content": [THOUGHT, {"type": "text", "text": "a"}]}, "a"),
        ({"content": [{"type": "reasoning", "text": "hm"}]}, ""),
        ({"content": [{"type": "redacted_thinking", "data": "x"}]}, ""),
    ],
)
def test_contents_of_every_role(role: str, content: dict[str, Any], text: str) -> None:
    known = {"developer": "system", "function": "tool"}.get(role, role)
    assert read_messages([{"role": role, **content}]) == [{"role": known, "content": text}]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (answered(content=None, tool_calls=[]), answered()),
        (answered(content=None, tool_calls=None, function_call=None, refusal=None, audio=None), answered()),
        (answered(content=None, refusal="I will not."), answered(content="I will not.")),
        (answered(content="a", refusal="b"), answered(content="a")),
        (answered(content=None, audio={"id": "x", "transcript": "said"}), answered(content="said")),
        (answered(content=None, name=None, annotations=None), answered()),
        (answered(content="a", reasoning_content="hm"), answered(content="a", reasoning_content="hm")),
        (answered(content=None, tool_calls=[CALL]), answered(tool_calls=[CALL])),
        (answered(content=None, tool_calls=[{"function": {"name": "f"}}]),
         answered(tool_calls=[{"type": "function", "function": {"name": "f", "arguments": "{}"}}])),
        *(
            (answered(tool_calls=[{"id": "c1", "type": "function", "function": {"name": "f", "arguments": given}}]),
             answered(tool_calls=[call("f", text)]))
            for given, text in ((None, "{}"), ("", "{}"), (" ", "{}"), ({"a": 1}, '{"a": 1}'), ("{oops", "{oops"))
        ),
        (answered(content=None, function_call={"name": "f", "arguments": '{"a": 1}'}),
         answered(tool_calls=[call("f", '{"a": 1}', "call_f")])),
        (answered(content=None, tool_calls=[CALL], function_call={"name": "f", "arguments": "{}"}),
         answered(tool_calls=[CALL])),
        (answered(tool_calls=[{"id": "c1", "type": "custom", "custom": {"name": "f", "input": "x"}}]),
         answered(tool_calls=[call("f", '{"input": "x"}')])),
        (answered(content=[{"type": "tool_use", "id": "c1", "name": "f", "input": {"a": 1}}]),
         answered(tool_calls=[call("f", '{"a": 1}')])),
        ({"role": "function", "name": "f", "content": "5"}, result("5", name="f")),
        ({"role": "tool", "tool_call_id": "c1", "content": None}, result("", tool_call_id="c1")),
        ({"role": "tool", "content": {"rows": [1]}}, result('{"rows": [1]}')),
        ({"role": "tool", "content": [{"rows": 1}]}, result('[{"rows": 1}]')),
        ({"role": "tool", "content": 5}, result("5")),
    ],
)  # fmt: skip
def test_a_message(given: dict[str, Any], expected: dict[str, Any]) -> None:
    assert read_messages([given]) == [expected]
    assert read_messages(read_messages([given])) == [expected]  # what is read is read the same again


def test_results_of_tools_in_a_users_message() -> None:
    parts = [{"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "5"}]}]
    expected = [result("5", tool_call_id="c1")]
    assert read_messages([{"role": "user", "content": parts}]) == expected
    more = [*parts, {"type": "text", "text": "Go on."}]
    assert read_messages([{"role": "user", "content": more}]) == [
        *expected,
        {"role": "user", "content": "Go on."},
    ]


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"content": "hi"}, "messages[0].role"),
        ({"role": None, "content": "hi"}, "messages[0].role"),
        ({"role": "user", "content": 5}, "messages[0].content"),
        ({"role": "user", "content": [IMAGE]}, "messages[0].content[0]"),
        ({"role": "tool", "content": [{"type": "text", "text": "a"}, IMAGE]}, "messages[0].content[1]"),
        ({"role": "user", "content": [{"type": "input_audio"}]}, "messages[0].content[0]"),
        ({"role": "user", "content": [{"type": "file"}]}, "messages[0].content[0]"),
        ({"role": "user", "content": [{"type": "novel"}]}, "messages[0].content[0]"),
        ({"role": "user", "content": [{"type": ["text"]}]}, "messages[0].content[0]"),
        ({"role": "user", "content": [{"type": "text", "text": 5}]}, "messages[0].content[0]"),
        ({"role": "user", "content": [None]}, "messages[0].content[0]"),
        (answered(audio={"id": "x"}), "messages[0].audio"),
        (answered(tool_calls={}), "messages[0].tool_calls"),
        (answered(tool_calls=[None]), "messages[0].tool_calls[0]"),
        (answered(tool_calls=[{}]), "messages[0].tool_calls[0].function"),
        (answered(tool_calls=[{"function": {"name": None}}]), "messages[0].tool_calls[0].function"),
        (answered(function_call="auto"), "messages[0].function_call"),
    ],
)
def test_a_message_whose_meaning_would_change(message: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        read_messages([message])
    assert caught.value.param == param
    assert param in str(caught.value)


OUTPUT_TEXT = {"type": "output_text", "text": "a", "annotations": []}


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        ({"role": "assistant", "content": None}, [answered()]),
        ({"role": "assistant"}, [answered()]),
        ({"type": "message", "role": "assistant", "content": []}, [answered()]),
        ({"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}, [answered(content="no")]),
        ({"role": "assistant", "content": [OUTPUT_TEXT, OUTPUT_TEXT]}, [answered(content="a\na")]),
        *(
            ({"type": "function_call", "call_id": "c1", "name": "f", "arguments": given},
             [answered(tool_calls=[call("f", text)])])
            for given, text in ((None, "{}"), ("", "{}"), ({"a": 1}, '{"a": 1}'), ("{}", "{}"))
        ),
        *(
            ({"type": "function_call_output", "call_id": "c1", "output": given},
             [result(text, tool_call_id="c1")])
            for given, text in (
                (None, ""), ("", ""), ([], ""), ({"a": 1}, '{"a": 1}'), ([{"type": "input_text", "text": "a"}], "a"),
            )
        ),
        ({"type": "function_call_output", "call_id": "c1"}, [result("", tool_call_id="c1")]),
        ({"type": "custom_tool_call", "call_id": "c1", "name": "f", "input": "x"},
         [answered(tool_calls=[call("f", '{"input": "x"}')])]),
        ({"type": "custom_tool_call_output", "call_id": "c1", "output": "y"}, [result("y", tool_call_id="c1")]),
        ({"type": "local_shell_call", "call_id": "c1", "action": {"command": ["ls"]}},
         [answered(tool_calls=[call("local_shell", '{"command": ["ls"]}')])]),
        ({"type": "local_shell_call_output", "id": "c1", "output": "y"}, [result("y", tool_call_id="c1")]),
        ({"type": "shell_call", "call_id": "c1", "action": None}, [answered(tool_calls=[call("shell", "{}")])]),
        ({"type": "shell_call_output", "call_id": "c1", "output": [{"stdout": "y"}]},
         [result('[{"stdout": "y"}]', tool_call_id="c1")]),
        ({"type": "apply_patch_call", "call_id": "c1", "operation": {"path": "p"}},
         [answered(tool_calls=[call("apply_patch", '{"path": "p"}')])]),
        ({"type": "apply_patch_call_output", "call_id": "c1", "status": "completed"},
         [result("", tool_call_id="c1")]),
        ({"type": "mcp_call", "id": "m", "name": "f", "arguments": "{}", "output": None, "error": "gone"},
         [answered(tool_calls=[call("f", "{}", "m")]), result("gone", tool_call_id="m")]),
    ],
)  # fmt: skip
def test_an_item(item: dict[str, Any], expected: list[dict[str, Any]]) -> None:
    assert read_input([USER, item], None) == [USER, *expected]


@pytest.mark.parametrize("instructions", [None, "", "Be short."])
def test_one_system_message(instructions: str | None) -> None:
    items = [{"role": "developer", "content": "Obey."}, {"role": "system", "content": "Now."}, USER]
    texts = [instructions] if instructions else []
    text = "\n\n".join([*texts, "Obey.", "Now."])
    assert read_input(items, instructions) == [{"role": "system", "content": text}, USER]
    later = [USER, {"role": "developer", "content": "Obey."}]
    assert read_input(later, None) == [USER, {"role": "system", "content": "Obey."}]


def kinds(union: Any) -> set[str]:
    """Return the values of ``type`` in a union of OpenAI's dictionaries, or of its models."""
    members = typing.get_args(union)
    members = typing.get_args(members[0]) or members
    hints = (
        one.model_fields["type"].annotation if hasattr(one, "model_fields") else fields_of(one)["type"]
        for one in members
    )
    return {kind for hint in hints for kind in texts(hint)}


def fields_of(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def texts(hint: Any) -> set[str]:
    return {hint} if isinstance(hint, str) else {one for part in typing.get_args(hint) for one in texts(part)}


REFUSED_ITEMS = {
    "compaction": "a server's own memory of the conversation",
    "compaction_trigger": "a server compacts, and none does here",
    "computer_call_output": "an image",
    "image_generation_call": "an image",
    "item_reference": "nothing is kept here between two calls",
}


def test_every_item_of_openais_has_a_place() -> None:
    known = kinds(ResponseInputItemParam) | kinds(ResponseOutputItem)
    assert known >= {"message", "function_call", "reasoning"}
    assert known - {"message", *CALLS, *OUTPUTS, *LEFT_OUT_ITEMS} == set(REFUSED_ITEMS)
    for kind in REFUSED_ITEMS:
        with pytest.raises(RequestError, match=kind):
            read_input([{"type": kind, "id": "x", "call_id": "x"}], None)
    for kind in LEFT_OUT_ITEMS:
        left_out = LeftOut()
        assert read_input([USER, {"type": kind}], None, left_out) == [USER]
        assert left_out.names == [f"input.{kind}"]


def test_every_tool_of_openais_has_a_place() -> None:
    function = {"type": "function", "function": {"name": "f"}}
    for kind in kinds(ToolParam) - {"function"}:
        left_out = LeftOut()
        assert read_tools([{"type": kind, "name": "x"}, function], left_out) == [function]
        assert left_out.names == [f"tools.{kind}"]
    assert read_tools([{"type": "function", "name": "f", "strict": None}]) == [function]
    assert read_tools([]) is None
    for wrong in ({}, {"type": None}, {"type": "function"}, {"type": "function", "function": {"name": ""}}):
        with pytest.raises(RequestError, match=r"tools\[0\]"):
            read_tools([wrong])


def test_the_header_is_short_and_plain() -> None:
    left_out = LeftOut()
    assert left_out.headers() == []
    for kind in ("mcp", "mcp", "x\r\nset-cookie: a", "é", "k" * 41, *(f"k{number}" for number in range(99))):
        left_out.add("tools", kind)
    ((name, value),) = left_out.headers()
    assert name == LEFT_OUT.encode()
    assert value.startswith(b"tools.mcp, tools.other, tools.k0, ")
    assert value.count(b"tools.") == MAX_NAMES


TOOLS = [
    {"type": "function", "name": "f"},
    {"type": "namespace", "name": "n", "tools": []},
    {"type": "custom", "name": "apply_patch", "format": {"type": "grammar"}},
    {"type": "web_search"},
]


@pytest.mark.parametrize("stream", [False, True])
def test_what_codex_sends_is_answered(url: str, engine: ScriptedEngine, stream: bool) -> None:
    items = [{"role": "developer", "content": "Obey."}, USER, {"type": "reasoning", "summary": []}]
    body = {
        "model": "scripted",
        "instructions": "Be short.",
        "input": items,
        "tools": TOOLS,
        "stream": stream,
    }
    answer = post(url, body, "/v1/responses")
    assert answer.status_code == 200
    assert answer.headers[LEFT_OUT] == "tools.namespace, tools.custom, tools.web_search, input.reasoning"
    assert engine.last.tools == [{"type": "function", "function": {"name": "f"}}]
    assert engine.last.prompt == [{"role": "system", "content": "Be short.\n\nObey."}, USER]


def test_chat_names_what_it_leaves_out(url: str, engine: ScriptedEngine) -> None:
    messages = [USER, answered(content=[THOUGHT]), USER]
    answer = post(url, chat_body(messages=messages, tools=TOOLS[1:]))
    assert answer.headers[LEFT_OUT] == "messages.thinking, tools.namespace, tools.custom, tools.web_search"
    assert engine.last.tools is None
    assert LEFT_OUT not in post(url, chat_body()).headers


def test_a_forced_tool_that_is_left_out(url: str) -> None:
    for choice in ("required", {"type": "web_search"}, {"type": "custom", "name": "apply_patch"}):
        answer = post(url, chat_body(tools=TOOLS[1:], tool_choice=choice))
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tool_choice")


def test_tokens_are_counted_as_they_are_generated_from(url: str, engine: ScriptedEngine) -> None:
    messages = [answered(content=None, tool_calls=[]), {"role": "tool", "content": None}]
    assert post(url, chat_body(messages=messages, tools=TOOLS)).status_code == 200
    assert post(url, {"messages": messages, "tools": TOOLS}, "/tokenize").status_code == 200
    prompt, options = engine.tokenized[-1]
    assert (prompt, options["tools"]) == (engine.last.prompt, engine.last.tools)


def test_every_answer_is_input_again(url: str, engine: ScriptedEngine) -> None:
    """The answer goes back whole, with all members, as agents that keep dictionaries do."""
    message = post(url, chat_body()).json()["choices"][0]["message"]
    assert post(url, chat_body(messages=[USER, message, USER])).status_code == 200
    assert engine.last.prompt == [USER, {"role": "assistant", "content": "Hello, wörld!"}, USER]
    items = post(url, {"input": "hi"}, "/v1/responses").json()["output"]
    assert post(url, {"input": [USER, *items, USER]}, "/v1/responses").status_code == 200
    assert json.dumps(engine.last.prompt, ensure_ascii=False).count("Hello, wörld!") == 1
