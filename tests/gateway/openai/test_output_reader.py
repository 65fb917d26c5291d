"""What is read from an output, and that it never depends on how the output was cut."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentspec.gateway.http.api_response import encode_json
from agentspec.gateway.openai.call_reader import Arguments, CallBegun, CallEnded
from agentspec.gateway.openai.output_reader import Event, OutputReader, Reasoning, Text, joined
from agentspec.generation import ThinkTags

OPEN, CLOSE = "<tool_call>", "</tool_call>"


def call(arguments: str, name: str = "f") -> str:
    return f'{OPEN}\n{{"name": "{name}", "arguments": {arguments}}}\n{CLOSE}'


CALL = call('{"x": 1}')
X = ("f", '{"x": 1}')
INSIDE_THINK = f"<think>I could {CALL} but no.</think>"
DEEP = "[" * 20_000


def events_of(pieces: list[str], **options: Any) -> list[Event]:
    reader = OutputReader(**{"reads_calls": True, **options})
    events = [event for piece in pieces for event in reader.push(piece)]
    return joined(events + reader.end())


def told(events: list[Event]) -> list[Any]:
    """Return texts, reasoning as a list of one text, and calls: name, arguments, and False if incomplete."""
    parts: list[Any] = []
    for event in events:
        match event:
            case Text(text):
                parts.append(text)
            case Reasoning(text):
                parts.append([text])
            case CallBegun(name):
                parts.append((name, ""))
            case Arguments(text):
                parts[-1] = (parts[-1][0], parts[-1][1] + text)
            case CallEnded(is_complete):
                parts[-1] += () if is_complete else (False,)
    return parts


def cut(text: str, *sizes: int) -> list[str]:
    pieces = []
    for size in sizes:
        pieces.append(text[:size])
        text = text[size:]
    return [*pieces, text]


PLAIN = [
    "",
    "plain",
    " \n text, <b> and <tool_cal \n",
    "a < b <",
    f"The tag {OPEN} starts a call.",
    f"{OPEN}[1]{CLOSE}",
    f"{OPEN}{{}}{CLOSE}",
    f"{OPEN}{{broken{CLOSE}",
    f'{OPEN}{{"name": 5}}{CLOSE}',
    f'{OPEN}{{"name": ""}}{CLOSE}',
    f'{OPEN}{{"name": "f", ...}}{CLOSE}',
    f'{OPEN}{{"name": "f", "arguments": ...}}{CLOSE}',
    f'{OPEN}{{"name": "f", "arguments": <arguments>}}{CLOSE}',
    f'{OPEN}{{"name": <name>, "arguments": {{}}}}{CLOSE}',
    f'{OPEN}{{"name": "f" "arguments": {{}}}}{CLOSE}',
    f'{OPEN}{{"arguments": {{"x": 1}}}}{CLOSE}',
    f'{OPEN}{{"arguments": {{x is 1}}, "name": "f"}}{CLOSE}',
    f'{OPEN}{{"type": "function", "function": {{"name": "f", "arguments": {{}}}}}}{CLOSE}',
    f'{OPEN}{{"name": "a{CLOSE} text',
    f'{OPEN}{{"name": "f", "argu',
    f'{OPEN}\n{{"name": "f"',
    f'{OPEN}{{"name": "{"n" * 300}", "arguments": {{}}}}{CLOSE}',
    f"{OPEN}{DEEP}{CLOSE}",
    f'{OPEN}{{"arguments": {DEEP}',
    "<think> without an end",
    f"<think> without an end {CALL}",
    INSIDE_THINK,
    f" \n{INSIDE_THINK} Hello",
]

CALLS: list[tuple[str, list[Any]]] = [
    (CALL, [X]),
    (f"\n\n{CALL}\n", [X]),
    (f"I look.\n{CALL}\n{CALL}", ["I look.", X, X]),
    (f"{CALL} and more \n", [X, " and more"]),
    (f"{CLOSE}{CALL}", [CLOSE, X]),
    # a mention, and then the real call
    (f"The tag {OPEN} starts a call. Now:\n{CALL}", [f"The tag {OPEN} starts a call. Now:", X]),
    (f"{OPEN} {OPEN}{CALL}", [f"{OPEN} {OPEN}", X]),
    (f"{OPEN}{{broken{CLOSE} {CALL}", [f"{OPEN}{{broken{CLOSE}", X]),
    (f'{OPEN}{{"name": "a{CLOSE} {CALL}', [f'{OPEN}{{"name": "a{CLOSE}', X]),
    (f"`{OPEN}{{...}}{CLOSE}`: {CALL}", [f"`{OPEN}{{...}}{CLOSE}`:", X]),
    # the arguments as the model wrote them
    (call('{"a":  1.0, "b": [ ], "größe": "\\u00e9"}'), [("f", '{"a":  1.0, "b": [ ], "größe": "\\u00e9"}')]),
    (call('{"text":"a \\ud83d b"}'), [("f", '{"text":"a \\ud83d b"}')]),
    (call('{"x": 1e999, "y": NaN}'), [("f", '{"x": 1e999, "y": NaN}')]),
    (call('{"code": "a\nb\t"}'), [("f", '{"code": "a\nb\t"}')]),
    (call('{"path": "C:\\path\\x"}'), [("f", '{"path": "C:\\path\\x"}')]),
    (call('{"a": 1, "a": 2}'), [("f", '{"a": 1, "a": 2}')]),
    (call("{'x': None}"), [("f", "{'x': None}")]),
    (call('{"s": "}{][\\"}"}'), [("f", '{"s": "}{][\\"}"}')]),
    (call('{"s": "\\\\"}'), [("f", '{"s": "\\\\"}')]),
    (call(DEEP + "]" * len(DEEP)), [("f", DEEP + "]" * len(DEEP))]),
    (call("[1, 2]"), [("f", "[1, 2]")]),
    (call("5"), [("f", "5")]),
    # arguments as a string: its content
    (call('"Paris"'), [("f", "Paris")]),
    (call('"{\\"a\\": \\"\\\\u00e9\\\\n\\"}"'), [("f", '{"a": "\\u00e9\\n"}')]),
    (call('" \\n{\\"a\\": \\"\\ud83d\\ude00 \\ud83d \\p\\"}"'), [("f", ' \n{"a": "😀 \\ud83d \\p"}')]),
    # none
    (call('""'), [("f", "{}")]),
    (call('" "'), [("f", "{}")]),
    (call("null"), [("f", "{}")]),
    (f'{OPEN}{{"name": "now"}}{CLOSE}', [("now", "{}")]),
    (f'{OPEN}{{"name": "now", }}{CLOSE}', [("now", "{}")]),
    # other orders and keys
    (f'{OPEN}{{"arguments": {{"x": 1}}, "name": "f"}}{CLOSE}', [X]),
    (f'{OPEN}{{"arguments": "{{\\"x\\": 1}}", "name": "f"}}{CLOSE}', [X]),
    (f'{OPEN}{{"arguments": null, "name": "f"}}{CLOSE}', [("f", "{}")]),
    (f'{OPEN}{{"name": "f", "parameters": {{"x": 1}}}}{CLOSE}', [X]),
    (f'{OPEN}{{"id": 7, "why": "{{", "name": "f", "arguments": {{"x": 1}}, "of": [{{}}]}}{CLOSE}', [X]),
    (f'{OPEN}{{"name": "f", "arguments": {{"x": 1}}, "arguments": {{"y": 2}}}}{CLOSE}', [X]),
    # names
    (call('{"x": 1}', "gr\\u00f6\\u00dfe"), [("größe", '{"x": 1}')]),
    (call('{"x": 1}', "a\\ud83d\\ude00\\ud83d"), [("a😀\\ud83d", '{"x": 1}')]),
    (call('{"x": 1}', f'\\"{CLOSE}'), [(f'"{CLOSE}', '{"x": 1}')]),
    # tags within strings
    (call(f'{{"text": "{CLOSE} is the end"}}'), [("f", f'{{"text": "{CLOSE} is the end"}}')]),
    (call(f'{{"a": "{{}}\n{CLOSE}", "b": 1}}') + " t", [("f", f'{{"a": "{{}}\n{CLOSE}", "b": 1}}'), " t"]),
    (call(f'{{"a": "{OPEN}{{}} \\" }}{CLOSE}"}}'), [("f", f'{{"a": "{OPEN}{{}} \\" }}{CLOSE}"}}')]),
    (call('{"a": "<think>"}') + "</think>", [("f", '{"a": "<think>"}'), "</think>"]),
    # ends that are missing, doubled or in the wrong place
    (CALL.removesuffix(CLOSE), [X]),
    (CALL.removesuffix(f"}}\n{CLOSE}"), [X]),
    (CALL.replace("}}", "}") + " text", [X, " text"]),
    (CALL.replace("}}", "}}}") + " text", [X, " text"]),
    (CALL.replace("}}", "}") + CALL, [X, X]),
    (CALL.removesuffix(CLOSE) + CALL, [X, X]),
    (CALL.removesuffix(CLOSE) + "} text", [X, "\n} text"]),
    (CALL.replace("1}}", "1") + " text", [("f", '{"x": 1\n', False), " text"]),
    (CALL.replace("1}}", "1") + CALL, [("f", '{"x": 1\n', False), X]),
    (CALL[: CALL.index("1")], [("f", '{"x": ', False)]),
    (call('{"a": "never ends').removesuffix(f"}}\n{CLOSE}"), [("f", '{"a": "never ends', False)]),
    (call('{"p": "C:\\dir\\"}') + CALL, [("f", '{"p": "C:\\dir\\"}', False), X]),
    (call('{"p": "C:\\dir\\"}') + ' It is "C:", or', [("f", '{"p": "C:\\dir\\"}', False), ' It is "C:", or']),
    (call('{"p": "C:\\dir\\"}'), [("f", '{"p": "C:\\dir\\"}', False)]),
    # a thought that begins the output
    (f"{INSIDE_THINK}\n{CALL}", [INSIDE_THINK, X]),
    (f"Text <think> {CALL}", ["Text <think>", X]),
]

THOUGHTS: list[tuple[ThinkTags, str, list[Any]]] = [
    ("known", f"{INSIDE_THINK}Hello", [[INSIDE_THINK[7:-8]], "Hello"]),
    ("known", "<think>\na < b\n</think>\n\nHello", [["\na < b\n"], "\n\nHello"]),
    ("known", f"\n<think>a</think>\n\n{CALL}", [["a"], X]),
    ("known", f"Hello <think>a</think> you {CALL} <think>b</think>", ["Hello", ["a"], " you", X, ["b"]]),
    ("known", f"<think>a {CALL} </thin", [[f"a {CALL} </thin"]]),
    ("known", f"{CALL}<think>{CALL}</think>{CALL}", [X, [CALL], X]),
    ("known", "no thought</think>", ["no thought</think>"]),
    ("open", f"\na {CALL}</think>Hello {CALL}", [[f"\na {CALL}"], "Hello", X]),
    ("open", "<think>a<think>b</think>c", [["a<think>b"], "c"]),
    ("open", "\n<think>\na", [["\na"]]),
    ("open", "</think>Hello", ["Hello"]),
    ("open", "cut off", [["cut off"]]),
    ("open", "", []),
]


@pytest.mark.parametrize("text", PLAIN)
def test_text_that_is_no_call_stays_as_it_is(text: str) -> None:
    check(text, [text] if text else [])


@pytest.mark.parametrize(("text", "expected"), CALLS)
def test_calls(text: str, expected: list[Any]) -> None:
    check(text, expected)


@pytest.mark.parametrize(("think_tags", "text", "expected"), THOUGHTS)
def test_reasoning(think_tags: ThinkTags, text: str, expected: list[Any]) -> None:
    check(text, expected, think_tags=think_tags)


def check(text: str, expected: list[Any], **options: Any) -> None:
    """Check what is read of the whole text, of each character, and of two parts wherever it is cut."""
    whole = events_of([text], **options)
    assert told(whole) == expected
    encode_json(told(whole)).decode()
    if len(text) < 1000:
        assert events_of(list(text), **options) == whole
        assert all(events_of(cut(text, size), **options) == whole for size in range(len(text)))


FRAGMENTS = (
    *(
        OPEN,
        CLOSE,
        "<think>",
        "</think>",
        "<",
        " ",
        "\n",
        "{",
        "}",
        "[",
        "]",
        '"',
        '\\"',
        "\\",
        "\\u",
        "\\ud83d",
    ),
    *(
        "\\ude00",
        "00e9",
        ":",
        ",",
        "a",
        "1",
        "null",
        '{"name": "f", "arguments": ',
        '"parameters": ',
        CALL,
        "é😀",
    ),
)


@settings(max_examples=400, deadline=None)
@given(
    st.lists(st.sampled_from(FRAGMENTS), max_size=30).map("".join),
    st.lists(st.integers(0, 9), max_size=60),
    st.sampled_from(["unknown", "known", "open"]),
    st.booleans(),
)
def test_the_result_does_not_depend_on_the_cuts(
    text: str, sizes: list[int], think_tags: ThinkTags, reads_calls: bool
) -> None:
    options = {"think_tags": think_tags, "reads_calls": reads_calls}
    whole = events_of([text], **options)
    assert events_of(cut(text, *sizes), **options) == whole
    begun = 0
    for event in whole:
        begun += isinstance(event, CallBegun) - isinstance(event, CallEnded)
        assert begun == isinstance(
            event, CallBegun | Arguments
        )  # events of a call are never mixed with others
    if think_tags == "unknown" and not any(isinstance(event, CallBegun) for event in whole):
        assert "".join(told(whole)) == text


@settings(max_examples=100, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda value: st.lists(value, max_size=3) | st.dictionaries(st.text(), value, max_size=3),
    ).map(lambda value: {"value": value}),
    st.booleans(),
    st.integers(1, 9),
)
def test_any_arguments_come_back_as_they_are(value: Any, is_ascii: bool, size: int) -> None:
    written = json.dumps(value, ensure_ascii=is_ascii)
    text = f"Now: {call(written)} done"
    assert told(events_of(cut(text, *[size] * 50))) == ["Now:", ("f", written), " done"]
    quoted = json.dumps(written, ensure_ascii=is_ascii)
    assert told(events_of(cut(call(quoted), *[size] * 50))) == [("f", written)]


@pytest.mark.parametrize(
    ("pieces", "events"),
    [
        (["SELECT ", "a < b", "<", "t", " "], [[Text("SELECT")], [Text(" a < b")], [], [], [Text("<t")]]),
        ([f"Say {OPEN}", " ", "to"], [[Text("Say")], [], [Text(f" {OPEN} to")]]),
        ([f"{OPEN}\n", "{", "b"], [[], [], [Text(f"{OPEN}\n{{b")]]),
        (
            [f'{OPEN}{{"name": "f"', ', "arguments"', ': {"a', '": "b', " } ", "c", '"', "}", "}", CLOSE],
            [
                *([], [], [CallBegun("f"), Arguments('{"a')], [Arguments('": "b')], [Arguments(" ")]),
                *([Arguments("} c")], [Arguments('"')], [Arguments("}")], [CallEnded(True)], []),
            ],
        ),
    ],
)
def test_nothing_is_held_longer_than_it_can_be_part_of_a_call(
    pieces: list[str], events: list[list[Event]]
) -> None:
    reader = OutputReader(reads_calls=True)
    assert [reader.push(piece) for piece in pieces] == events


def test_at_most_so_many_calls() -> None:
    assert told(events_of([f"a {CALL} b {CALL} c"], max_calls=1)) == ["a", X, " b c"]
