"""Logs of other projects: each form is read as the same call, and what is no call is named."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentspec.errors import ConfigError
from agentspec.forest import Tokens
from agentspec.recorded.calls import RecordedAnswer, Skipped, read, said
from agentspec.replay.calls import encoded
from agentspec.replay.calls import read as read_texts

SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": "What is in src?"}
TOOL = {"type": "function", "function": {"name": "ls", "parameters": {"type": "object"}}}
CALL = {"id": "c1", "type": "function", "function": {"name": "ls", "arguments": '{"path": "src"}'}}
MESSAGE = {"role": "assistant", "content": "I look.", "tool_calls": [CALL]}
CHAT = {"messages": [SYSTEM, USER], "tools": [TOOL]}
ANSWER = RecordedAnswer("I look.", (("ls", '{"path": "src"}'),))
BODY = {"id": "x", "object": "chat.completion", "choices": [{"message": MESSAGE, "finish_reason": "stop"}]}
ANTHROPIC = {
    "system": [{"type": "text", "text": "Be brief."}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "What is in src?"}, {"type": "image"}]}
    ],
    "tools": [{"name": "ls", "input_schema": {"type": "object"}}],
}
BLOCKS = [
    {"type": "thinking", "thinking": "hm"},
    {"type": "text", "text": "I look."},
    {"type": "tool_use", "id": "c1", "name": "ls", "input": {"path": "src"}},
]
ANTHROPIC_MESSAGE = {"type": "message", "role": "assistant", "content": BLOCKS, "stop_reason": "tool_use"}
RESPONSES = {
    "instructions": "Be brief.",
    "input": "What is in src?",
    "tools": [{"type": "function", "name": "ls"}],
}
ITEMS = [
    {"type": "reasoning", "summary": []},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
    {"type": "function_call", "call_id": "c1", "name": "ls", "arguments": '{"path": "src"}'},
]
PARTS_IN = [{"role": "user", "parts": [{"type": "text", "content": "What is in src?"}]}]
PARTS_OUT = [
    {
        "role": "assistant",
        "parts": [
            {"type": "reasoning", "content": "hm"},
            {"type": "text", "content": "I look."},
            {"type": "tool_call", "id": "c1", "name": "ls", "arguments": {"path": "src"}},
        ],
        "finish_reason": "tool_call",
    }
]
ATTRIBUTES = {
    "gen_ai.system_instructions": json.dumps([{"type": "text", "content": "Be brief."}]),
    "gen_ai.input.messages": json.dumps(PARTS_IN),
    "gen_ai.output.messages": json.dumps(PARTS_OUT),
    "gen_ai.tool.definitions": json.dumps([TOOL]),
    "gen_ai.agent.name": "agent",
    "gen_ai.conversation.id": "run-1",
}
OTLP = {
    "resourceSpans": [
        {
            "scopeSpans": [
                {
                    "spans": [
                        {
                            "traceId": "t",
                            "attributes": [
                                {"key": name, "value": {"stringValue": value}}
                                for name, value in ATTRIBUTES.items()
                            ],
                        }
                    ]
                }
            ]
        }
    ]
}
NUMBERED = {
    "gen_ai.prompt.0.role": "system",
    "gen_ai.prompt.0.content": "Be brief.",
    "gen_ai.prompt.1.role": "user",
    "gen_ai.prompt.1.content": "What is in src?",
    "gen_ai.completion.0.role": "assistant",
    "gen_ai.completion.0.content": "I look.",
    "gen_ai.completion.0.tool_calls.0.name": "ls",
    "gen_ai.completion.0.tool_calls.0.arguments": '{"path": "src"}',
}
TAGS = {"stage": "agent", "session": "run-1"}
FORMS: dict[str, dict[str, Any]] = {
    "a call": {**CHAT, "response": MESSAGE, **TAGS},
    "bodies": {"request": CHAT, "response": BODY, **TAGS},
    "a body as text": {**CHAT, "response": json.dumps(BODY), **TAGS},
    "a message as text": {**CHAT, "response": json.dumps(MESSAGE), **TAGS},
    "a batch": {
        "custom_id": "1",
        "body": CHAT,
        "response": {"status_code": 200, "body": BODY},
        "error": None,
        **TAGS,
    },
    "responses": {"request": RESPONSES, "response": {"object": "response", "output": ITEMS}, **TAGS},
    "responses, one object": {**RESPONSES, "output": ITEMS, **TAGS},
    "responses, items": {
        "request": {
            **RESPONSES,
            "input": [{"role": "user", "content": [{"type": "input_text", "text": "What is in src?"}]}],
        },
        "response": {"object": "response", "output": ITEMS},
        **TAGS,
    },
    "anthropic": {"request": ANTHROPIC, "response": ANTHROPIC_MESSAGE, **TAGS},
    "anthropic, one object": {**ANTHROPIC, "response": ANTHROPIC_MESSAGE, **TAGS},
    "langfuse": {
        "id": "o",
        "traceId": "run-1",
        "type": "GENERATION",
        "name": "agent",
        "input": CHAT,
        "output": MESSAGE,
    },
    "langfuse, texts": {
        "id": "o",
        "traceId": "t",
        "sessionId": "run-1",
        "type": "GENERATION",
        "name": "agent",
        "input": json.dumps(CHAT),
        "output": json.dumps(MESSAGE),
    },
    "langfuse, messages": {
        "traceId": "run-1",
        "type": "GENERATION",
        "name": "agent",
        "input": CHAT["messages"],
        "output": MESSAGE,
    },
    "a span": {"name": "chat", "attributes": ATTRIBUTES},
    "OTLP": OTLP,
    "OpenLLMetry": {"name": "agent", "context": {"trace_id": "run-1"}, "attributes": NUMBERED},
}
LANGFUSE = FORMS["langfuse"]
MESSAGES = CHAT["messages"]
CALLED = {"name": "ls", "args": {"path": "src"}, "id": "c1", "type": "tool_call"}
EVENTS = [
    {"name": "details", "attributes": OTLP["resourceSpans"][0]["scopeSpans"][0]["spans"][0]["attributes"]}
]


def lc(kind: str, content: str, **more: Any) -> dict[str, Any]:
    """Return a message as LangChain serializes it."""
    return {"lc": 1, "type": "constructor", "id": [], "kwargs": {"type": kind, "content": content, **more}}


def typed(value: Any) -> dict[str, Any]:
    """Return a value as OTLP types it."""
    if isinstance(value, list):
        return {"arrayValue": {"values": [typed(one) for one in value]}}
    if isinstance(value, dict):
        return {
            "kvlistValue": {"values": [{"key": name, "value": typed(one)} for name, one in value.items()]}
        }
    return {"stringValue": value}


CHUNKS = [
    {"delta": {"role": "assistant", "content": "I "}},
    {"delta": {"content": "look."}},
    {"delta": {"tool_calls": [{"index": 0, "function": {"name": "ls", "arguments": '{"path": '}}]}},
    {
        "delta": {"tool_calls": [{"index": 0, "function": {"arguments": '"src"}'}}]},
        "finish_reason": "tool_calls",
    },
]
FORMS |= {
    "a chat with its choices": {**BODY, **CHAT, **TAGS},
    "server-sent events": {
        "request": CHAT,
        "response": "".join(f"data: {json.dumps({'choices': [one]})}\n\n" for one in CHUNKS)
        + "data: [DONE]\n\n",
        **TAGS,
    },
    "bodies as texts": {"request": json.dumps(CHAT), "response": json.dumps(BODY), **TAGS},
    "bodies of HTTP": {
        "request": {"url": "/v1", "body": CHAT},
        "response": {"status": 200, "body": BODY},
        **TAGS,
    },
    "bodies by other names": {"request_body": CHAT, "response_body": BODY, **TAGS},
    "metadata in a list": {**CHAT, "response": BODY, "data": [1], "trace_id": "t", "type": "chat", **TAGS},
    "ollama": {**CHAT, "response": {"model": "m", "message": MESSAGE, "done": True}, **TAGS},
    "litellm": {
        "call_type": "acompletion",
        "messages": MESSAGES,
        "model_parameters": {"tools": [TOOL]},
        "response": BODY,
        **TAGS,
    },
    "litellm, spend": {"messages": {}, "proxy_server_request": CHAT, "response": BODY, **TAGS},
    "anthropic, batch": {
        "custom_id": "1",
        "params": ANTHROPIC,
        "result": {"type": "succeeded", "message": ANTHROPIC_MESSAGE},
        **TAGS,
    },
    "langfuse, a page": {"data": [{**LANGFUSE, "type": "SPAN"}, LANGFUSE], "meta": {"page": 1}},
    "langfuse, a trace": {"id": "t", "input": "x", "output": "y", "observations": [LANGFUSE]},
    "langfuse, columns": {
        "trace_id": "t",
        "session_id": "run-1",
        "type": "GENERATION",
        "name": "agent",
        "input": json.dumps(CHAT),
        "output": json.dumps(MESSAGE),
    },
    "langsmith": {
        "run_type": "llm",
        "name": "agent",
        "trace_id": "run-1",
        "inputs": CHAT,
        "outputs": {"choices": [{"message": MESSAGE}]},
    },
    "langsmith, langchain": {
        "run_type": "llm",
        "name": "agent",
        "trace_id": "run-1",
        "inputs": {"messages": [[lc("system", "Be brief."), lc("human", "What is in src?")]]},
        "outputs": {"generations": [[{"text": "", "message": lc("ai", "I look.", tool_calls=[CALLED])}]]},
    },
    "OTLP, nested values": {
        "resourceSpans": [
            {
                "scopeSpans": [
                    {
                        "spans": [
                            {"traceId": "t", "name": "http", "attributes": []},
                            {
                                "attributes": [
                                    {
                                        "key": name,
                                        "value": typed(json.loads(text) if text[0] == "[" else text),
                                    }
                                    for name, text in ATTRIBUTES.items()
                                ]
                            },
                        ]
                    }
                ]
            }
        ]
    },
    "OTLP, an event": {"resourceSpans": [{"scopeSpans": [{"spans": [{"name": "chat", "events": EVENTS}]}]}]},
    "OTLP, logs": {"resourceLogs": [{"scopeLogs": [{"logRecords": [EVENTS[0]]}]}]},
    "OpenInference": {
        "name": "agent",
        "attributes": {
            "session.id": "run-1",
            "llm.input_messages.0.message.role": "system",
            "llm.input_messages.0.message.content": "Be brief.",
            "llm.input_messages.1.message.role": "user",
            "llm.input_messages.1.message.content": "What is in src?",
            "llm.output_messages.0.message.role": "assistant",
            "llm.output_messages.0.message.content": "I look.",
            "llm.output_messages.0.message.tool_calls.0.tool_call.function.name": "ls",
            "llm.output_messages.0.message.tool_calls.0.tool_call.function.arguments": '{"path": "src"}',
            "llm.tools.0.tool.json_schema": json.dumps(TOOL),
        },
    },
}
NO_TOOLS = {"langfuse, messages", "OpenLLMetry", "langsmith, langchain"}


def write(path: Path, *records: Any) -> Path:
    path.write_text("\n".join(one if isinstance(one, str) else json.dumps(one) for one in records))
    return path


@pytest.mark.parametrize("name", FORMS)
def test_every_form_is_the_same_call(name: str, tmp_path: Path) -> None:
    [call] = read(write(tmp_path / "log.jsonl", FORMS[name]))
    assert [(message["role"], said(message)) for message in call.prompt] == [
        ("system", "Be brief."),
        ("user", "What is in src?"),
    ]
    [answer] = call.answers
    assert (answer.text, [(name, json.loads(text)) for name, text in answer.calls]) == (
        "I look.",
        [("ls", {"path": "src"})],
    )
    assert (call.stage, call.session) == ("agent", "run-1")
    assert bool(call.tools) is (name not in NO_TOOLS)


def test_tools_and_system_belong_to_the_prompt_and_calls_are_encoded_once(tmp_path: Path) -> None:
    [call] = read_texts(write(tmp_path / "log.jsonl", FORMS["anthropic"]))
    head, _, rest = call.prompt.partition("<|system|>")
    assert head.startswith("<|tools|>\n[")
    assert '"name": "ls"' in head
    assert rest == "\nBe brief.\n<|user|>\nWhat is in src?\n<|assistant|>\n"
    assert call.response == 'I look.\n{"name": "ls", "arguments": {"path": "src"}}'


def test_tool_results_of_every_api_are_tool_messages(tmp_path: Path) -> None:
    result = {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "a.py"}]}
    anthropic = {
        "messages": [USER, {"role": "assistant", "content": BLOCKS}, {"role": "user", "content": [result]}],
        "response": "One file.",
    }
    output = {"type": "function_call_output", "call_id": "c1", "output": "a.py"}
    responses = {"input": [USER, *ITEMS, output], "output": [ITEMS[1]]}
    parts = [{"type": "tool_call_response", "id": "c1", "response": "a.py"}]
    span = {
        "attributes": {
            "gen_ai.input.messages": [*PARTS_IN, *PARTS_OUT, {"role": "tool", "parts": parts}],
            "gen_ai.output.messages": [
                {"role": "assistant", "parts": [{"type": "text", "content": "One file."}]}
            ],
        }
    }
    for record in (anthropic, responses, span):
        [call] = read(write(tmp_path / "log.jsonl", record))
        assert (call.prompt[-1]["role"], said(call.prompt[-1])) == ("tool", "a.py")


@pytest.mark.parametrize("response", ['{"kind": "count"}', "[1]", '{"choices": 3}', "{broken"])
def test_an_answer_in_json_is_a_text(response: str, tmp_path: Path) -> None:
    [call] = read(write(tmp_path / "log.jsonl", {"prompt": "p", "response": response}))
    assert call.answers == (RecordedAnswer(response),)


NO_CALLS: list[tuple[Any, str]] = [
    ({"error": "timeout"}, "no call in the fields"),
    ({"custom_id": "1", "response": {"status_code": 200, "body": BODY}}, "a batch's output has no requests"),
    ({"custom_id": "1", "body": CHAT, "response": None, "error": {"code": 1}}, "line without an answer"),
    ({"custom_id": "1", "body": CHAT, "response": {"status_code": 429}}, "line without an answer"),
    ({"traceId": "t", "type": "SPAN", "input": {}}, "of type 'SPAN' is no model call"),
    ({"traceId": "t", "type": "GENERATION", "input": [USER], "output": None}, "without output"),
    ({"name": "http", "attributes": {"http.method": "GET"}}, "no model call"),
    ({"messages": [USER], "response": None, "status": "failure"}, "a call without an answer"),
    ({"custom_id": "1", "params": ANTHROPIC, "result": {"type": "errored"}}, "line without an answer"),
    ({"custom_id": "1", "result": {"type": "succeeded", "message": ANTHROPIC_MESSAGE}}, "add 'params'"),
    ({"run_type": "chain", "inputs": {}, "outputs": {}}, "of type 'chain' is no model call"),
    ({"data": [{"type": "SPAN"}]}, "no model call among its observations"),
    ("{broken", "Expecting"),
    ("3", "a record is a JSON object, not 3"),
    ({"messages": [USER], "response": "r", "stage": ["a"]}, "'stage' must be a text"),
]


@pytest.mark.parametrize(("record", "reason"), NO_CALLS)
def test_what_is_no_call_is_left_out_counted_and_named(record: Any, reason: str, tmp_path: Path) -> None:
    path = write(tmp_path / "log.jsonl", FORMS["a call"], record, FORMS["a call"])
    skipped = Skipped()
    assert len(list(read(path, skipped))) == 2
    assert skipped.num_records == 1
    assert skipped.reasons[0].startswith(f"{path}:2: ")
    assert reason in skipped.reasons[0]
    with pytest.raises(ConfigError, match=r"log\.jsonl:2: "):
        list(read(path))


def test_the_first_three_are_named(tmp_path: Path) -> None:
    skipped = Skipped()
    assert not list(read(write(tmp_path / "log.jsonl", *[{"error": 1}] * 5), skipped))
    first, *named = skipped.lines("log")
    assert first == "log: 5 records are no calls and were left out; the first ones:"
    assert [line.split(":")[1] for line in named] == ["1", "2", "3"]


@pytest.mark.parametrize("tag", [None, "", 7])
def test_tags_that_are_no_text(tag: Any, tmp_path: Path) -> None:
    record = {**FORMS["a call"], "stage": tag, "session": tag}
    [call] = read_texts(write(tmp_path / "log.jsonl", record))
    assert (call.stage, call.session) == (("7", "7") if tag else ("default", "log.jsonl:1"))


def test_files_that_begin_with_a_mark_or_are_a_list(tmp_path: Path) -> None:
    text = json.dumps(FORMS["a call"])
    marked, zipped, listed = (tmp_path / name for name in ("marked.jsonl", "zipped.jsonl.gz", "list.json"))
    marked.write_bytes(b"\xef\xbb\xbf" + text.encode())
    zipped.write_bytes(gzip.compress(b"\xef\xbb\xbf" + text.encode()))
    listed.write_text(json.dumps([FORMS["langfuse"], {"error": 1}, FORMS["a span"]], indent=1))
    assert len(list(read(marked))) == len(list(read(zipped))) == 1
    skipped = Skipped()
    assert [call.line for call in read(listed, skipped)] == [1, 3]
    assert skipped.num_records == 1
    listed.write_text("[1, 2")
    with pytest.raises(ConfigError, match="the list is no JSON"):
        list(read(listed))


def test_an_object_over_several_lines_is_one_record(tmp_path: Path) -> None:
    path = tmp_path / "export.json"
    path.write_text(json.dumps({"data": [LANGFUSE]}, indent=2))
    assert [call.line for call in read(path)] == [1]


def test_json_that_is_nested_too_deeply(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nested too deeply"):
        list(read(write(tmp_path / "log.jsonl", "[" * 100_000)))


@pytest.mark.parametrize(
    ("message", "answer"),
    [
        (
            {"function_call": {"name": "f", "arguments": "{}"}, "content": None},
            RecordedAnswer("", (("f", "{}"),)),
        ),
        ({"tool_calls": [{"function": {"name": "f", "arguments": {}}}]}, RecordedAnswer("", (("f", "{}"),))),
        ({"content": [{"type": "refusal", "refusal": "No."}]}, RecordedAnswer("No.")),
        ({"content": None, "refusal": "No."}, RecordedAnswer("No.")),
    ],
)
def test_answers_of_other_kinds(message: dict[str, Any], answer: RecordedAnswer, tmp_path: Path) -> None:
    choices = [{"message": {"role": "assistant", **message}}] * 2
    [call] = read(write(tmp_path / "log.jsonl", {**CHAT, "response": {"choices": choices}}))
    assert call.answers == (answer, answer)


def test_half_a_character_is_encoded_as_a_question_mark(tmp_path: Path) -> None:
    [call] = read_texts(write(tmp_path / "log.jsonl", {"prompt": "p", "response": "cut \ud83d"}))
    seen: list[str] = []

    def encode(text: str) -> Tokens:
        seen.append(text)
        return np.zeros(1, np.int32)

    encoded(call, encode)
    assert sorted(seen) == ["cut ?", "p"]


# growing chats


def chat(*texts: str, role: str = "assistant") -> dict[str, Any]:
    """Return a chat in which users and assistants speak in turn."""
    roles = ("user", role)
    return {"messages": [{"role": roles[index % 2], "content": text} for index, text in enumerate(texts)]}


@pytest.mark.parametrize(
    ("records", "answers"),
    [
        # logged whole at each call, with the answer and without
        ([chat("a", "1"), chat("a", "1", "b", "2"), chat("a", "1", "b", "2", "c", "3")], ["1", "2", "3"]),
        ([chat("a"), chat("a", "1", "b"), chat("a", "1", "b", "2", "c")], ["1", "2"]),
        ([chat("a", "1"), chat("a", "1", "b"), chat("a", "1", "b", "2")], ["1", "2"]),
        # two runs, one after the other and interleaved
        (
            [chat("a", "1"), chat("a", "1", "b", "2"), chat("a", "1"), chat("a", "1", "b", "2")],
            ["1", "2"] * 2,
        ),
        (
            [chat("a", "1"), chat("a", "1"), chat("a", "1", "b", "2"), chat("a", "1", "c", "3")],
            ["1", "1", "2", "3"],
        ),
        # the system prompt has the date, and what is old is replaced by a summary
        (
            [
                {"messages": [{"role": "system", "content": f"Day {day}."}, *chat(*texts)["messages"]]}
                for day, texts in enumerate(
                    [("a", "1"), ("a", "1", "b", "2"), ("a", "1", "b", "2", "c", "3")]
                )
            ],
            ["1", "2", "3"],
        ),
        (
            [
                chat("a", "1", "b", "2"),
                chat("a", "1", "b", "2", "c", "3"),
                {"messages": [USER, *chat("a", "2", "c", "3", "d", "4")["messages"][1:]]},
            ],
            ["1", "2", "3", "4"],
        ),
        # another chat with the same last two messages
        ([chat("a", "1", "yes", "2"), chat("b", "3", "yes", "2", "c", "4")], ["1", "2", "3", "2", "4"]),
        # whole chats that begin alike
        ([chat("a", "1", "b", "2"), chat("a", "1", "c", "3")], ["1", "2", "1", "3"]),
        ([chat("a", "1", "b", "2"), chat("a", "1")], ["1", "2", "1"]),
    ],
)
def test_answers_of_growing_chats_count_once(
    records: list[dict[str, Any]], answers: list[str], tmp_path: Path
) -> None:
    skipped = Skipped()
    calls = list(read(write(tmp_path / "log.jsonl", *records), skipped))
    assert [call.answers[0].text for call in calls] == answers
    total = sum(message["role"] == "assistant" for record in records for message in record["messages"])
    assert skipped.num_again == total - len(answers)


def test_an_engine_that_replays_has_each_prompt(tmp_path: Path) -> None:
    days = [
        {"messages": [{"role": "system", "content": f"Day {day}."}, *chat("a", "1")["messages"], *more]}
        for day, more in ((1, []), (2, chat("b", "2")["messages"]))
    ]
    path = write(tmp_path / "log.jsonl", *days)
    assert [call.answers[0].text for call in read(path)] == ["1", "1", "2"]
    assert [call.answers[0].text for call in read(path, Skipped())] == ["1", "2"]


def test_a_growing_chat_is_one_session(tmp_path: Path) -> None:
    path = write(tmp_path / "log.jsonl", chat("x", "0"), chat("a", "1"), chat("a", "1", "b", "2"))
    assert [call.session for call in read_texts(path)] == ["log.jsonl:1", "log.jsonl:2", "log.jsonl:2"]
    calls = [{**chat("a"), "response": "1"}, {**chat("a", "1", "b"), "response": "2"}]
    assert [call.session for call in read_texts(write(path, *calls))] == ["log.jsonl:1"] * 2
    skipped = Skipped()
    assert len(list(read(path, skipped))) == 2  # answers of their own, however the prompts grow
    assert skipped.num_again == 0
