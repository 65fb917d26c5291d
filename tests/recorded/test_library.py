from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentspec.errors import ConfigError, UnrecordedCallError
from agentspec.gateway.openai.call_reader import Arguments, CallBegun, CallEnded
from agentspec.gateway.openai.output_reader import OutputReader, Text
from agentspec.recorded import CallLibrary, RecordedAnswer, read

SYSTEM = {"role": "system", "content": "Be brief."}
HI = {"role": "user", "content": "hi"}


def library(tmp_path: Path, *records: Any) -> CallLibrary:
    return CallLibrary(read(written(tmp_path, *records)))


def written(tmp_path: Path, *records: Any) -> Path:
    path = tmp_path / "calls.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def texts(calls: CallLibrary, prompt: Any, num_choices: int = 1) -> list[str]:
    return [choice.answer.text for choice in calls.take(prompt, num_choices)]


def user(text: str) -> list[dict[str, str]]:
    return [SYSTEM, {"role": "user", "content": text}]


def called(arguments: Any, call_id: str = "call_1", **fields: Any) -> dict[str, Any]:
    call = {"id": call_id, "type": "function", "function": {"name": "ls", "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call], **fields}


@pytest.mark.parametrize(
    "asked",
    [
        [SYSTEM, HI, called('{"b": [1],  "a":"é"}', "other"), {"role": "tool", "content": "x"}],
        [{**SYSTEM, "role": "developer"}, HI, called({"a": "é", "b": [1]}), {"role": "tool", "content": "x"}],
        [SYSTEM, HI, called('{"a": "\\u00e9", "b": [1]}', content=" \n"), {"role": "tool", "content": "x"}],
        [
            {**SYSTEM, "content": [{"type": "text", "text": "Be brief."}], "name": "me"},
            HI,
            called('{"a": "é", "b": [1]}', refusal=None),
            {"role": "tool", "tool_call_id": "z", "content": [{"type": "text", "text": "x"}]},
        ],
    ],
)
def test_ways_to_write_the_same(asked: Any, tmp_path: Path) -> None:
    recorded = [SYSTEM, HI, called('{"a":"é","b":[1]}'), {"role": "tool", "content": "x"}]
    assert texts(library(tmp_path, {"messages": recorded, "response": "done"}), asked) == ["done"]


def test_what_is_the_same_goes_before_what_is_alike(tmp_path: Path) -> None:
    runs = ["/tmp/tmpabcdefgh", "/tmp/tmphgfedcba"]
    calls = library(tmp_path, *({"messages": user(f"in {run}"), "response": run} for run in runs))
    assert [texts(calls, user(f"in {run}")) for run in (runs[1], runs[0], runs[1])] == [
        [runs[1]],
        [runs[0]],
        [runs[1]],
    ]
    elsewhere = user("in /tmp/tmpnewnewne")
    assert texts(calls, elsewhere) + texts(calls, elsewhere, 2) == [runs[0], runs[1], runs[0]]


def test_the_record_with_more_that_is_the_same(tmp_path: Path) -> None:
    one = [
        *user("at 10:00:00"),
        {"role": "assistant", "content": "a"},
        {"role": "user", "content": "0x7f5b4e94"},
    ]
    other = [*user("at 11:00:00"), *one[2:3], {"role": "user", "content": "0x7f5b4e95"}]
    calls = library(
        tmp_path, *({"messages": asked, "response": asked[-1]["content"]} for asked in (one, other))
    )
    assert texts(calls, [*other[:3], {"role": "user", "content": "0x7f5b4e96"}]) == ["0x7f5b4e95"]


def test_choices_of_a_completion_come_in_turn(tmp_path: Path) -> None:
    choices = [
        {"message": {"role": "assistant", "content": "a"}, "finish_reason": "stop"},
        {"message": {"role": "assistant", "content": "b"}, "finish_reason": "length"},
    ]
    record = {"request": {"model": "m", "messages": user("x")}, "response": {"choices": choices}}
    calls = library(tmp_path, record)
    assert len(calls) == 2
    assert [(choice.answer.text, choice.answer.is_cut) for choice in calls.take(user("x"), 3)] == [
        ("a", False),
        ("b", True),
        ("a", False),
    ]


def test_every_answer_of_a_chat_is_a_call(tmp_path: Path) -> None:
    chat = [
        *user("x"),
        called('{"a": 1}'),
        {"role": "tool", "content": "y"},
        {"role": "assistant", "content": "z"},
    ]
    calls = library(tmp_path, {"messages": chat})
    assert calls.take(chat[:2])[0].answer.calls == (("ls", '{"a": 1}'),)
    assert texts(calls, chat[:4]) == ["z"]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (user("z"), r"of 2 messages; the nearest is line 1: messages\[1\] \(user\) differs"),
        (
            [*user("y"), {"role": "assistant", "content": "b"}, HI],
            r"line 2: messages\[2\] \(assistant\) differs",
        ),
        (user("y"), "line 2: the same up to its end, but with 4 messages"),
        ("x", r"line 1: messages\[0\] \(user\) differs"),
    ],
)
def test_the_nearest_record(asked: Any, said: str, tmp_path: Path) -> None:
    longer = [*user("y"), {"role": "assistant", "content": "a"}, HI]
    calls = library(tmp_path, {"messages": user("x"), "response": "1"}, {"messages": longer, "response": "2"})
    with pytest.raises(UnrecordedCallError, match=said):
        calls.take(asked)


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ({"messages": "x", "response": "y"}, "'messages' must be a list of objects"),
        ({"messages": [{"content": "x"}], "response": "y"}, "'role' must be a text, not None"),
        ({"messages": [{**HI, "content": [1]}], "response": "y"}, "'content' must be a text"),
        ({"messages": [HI], "response": {"choices": []}}, "'response' must be a text"),
        ({"messages": [HI], "response": {"choices": [1]}}, "a choice must be an object"),
        ({"messages": [HI], "response": {"tool_calls": [{}]}}, "a call of a tool has a function"),
        ({"messages": [HI, {**HI, "tool_calls": [{}]}], "response": "y"}, "a call of a tool has a function"),
        ({"request": 5, "response": "x"}, "'request' must be an object"),
        ({"response": "x"}, "no call in the fields"),
    ],
)
def test_a_line_that_is_no_call(record: Any, said: str, tmp_path: Path) -> None:
    path = written(tmp_path, {"messages": [HI], "response": "y"}, record)
    with pytest.raises(ConfigError, match=rf"calls\.jsonl:2: {said}"):
        list(read(path))


@pytest.mark.parametrize(
    "arguments",
    [
        '{"a":1}',
        '{\n  "path": "ü"}',
        "{}",
        "no json",
        '"text"',
        '{"x": "<tool_call>{}</tool_call>"}',
        '{"a": 1e400}',
        '{"a": "\\ud83d"}',
        '{"a": "b\nc"}',
    ],
)
def test_what_is_written_is_read_as_it_was(arguments: str) -> None:
    answer = RecordedAnswer(" I look.\n", (('l"s', arguments), ("ls", arguments)))
    reader = OutputReader(reads_calls=True)
    answer.written().encode()
    text, *events = reader.push(answer.written()) + reader.end()
    assert text == Text(" I look.")
    for position, (name, recorded) in enumerate(answer.calls):
        begun, read, ended = events[3 * position : 3 * position + 3]
        assert (begun, ended) == (CallBegun(name), CallEnded(True))
        assert isinstance(read, Arguments)
        if read.text != recorded:  # formatted, as the templates write it
            assert read.text == json.dumps(json.loads(recorded), ensure_ascii=False)


def test_arguments_too_deep_to_read_are_text(tmp_path: Path) -> None:
    deep = "[" * 100_000
    asked = [*user("go"), called(deep), *user("on")]
    assert texts(library(tmp_path, {"messages": asked, "response": "done"}), asked) == ["done"]
    assert deep in RecordedAnswer("", (("f", deep),)).written()
