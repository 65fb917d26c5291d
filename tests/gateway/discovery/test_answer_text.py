from __future__ import annotations

import json
from typing import Any

import pytest

from agentspec.gateway.discovery.answer_text import text_of

CALL = {"name": "look", "arguments": '{"up": 1}'}


def events(*payloads: dict[str, Any]) -> bytes:
    return b"".join(b"event: x\ndata: " + json.dumps(one).encode() + b"\n\n" for one in payloads)


def choice(**fields: Any) -> dict[str, Any]:
    return {"id": "c", "object": "chat.completion", "model": "m", "choices": [{"index": 0, **fields}]}


PLAIN = {
    "chat": (choice(message={"role": "assistant", "content": "Hello."}, finish_reason="stop"), "Hello."),
    "chat, a call": (
        choice(message={"content": None, "tool_calls": [{"type": "function", "function": CALL}]}),
        'look{"up": 1}',
    ),
    "chat, thoughts": (choice(message={"reasoning": "Hm. ", "content": "Yes."}), "Hm. Yes."),
    "chat, two choices": (
        {"choices": [{"index": 0, "message": {"content": "A"}}, {"index": 1, "message": {"content": "B"}}]},
        "A",
    ),
    "completions": (choice(text="Hello.", logprobs=None), "Hello."),
    "responses": (
        {
            "object": "response",
            "instructions": "not this",
            "text": {"format": {"type": "text"}},
            "output": [
                {"type": "message", "content": [{"type": "output_text", "text": "Hello."}]},
                {"type": "function_call", **CALL},
            ],
        },
        'Hello.look{"up": 1}',
    ),
    "messages": (
        {
            "type": "message",
            "content": [
                {"type": "text", "text": "Hello."},
                {"type": "tool_use", "name": "look", "input": {"up": 1}},
            ],
        },
        'Hello.look{"up": 1}',
    ),
    "an error": ({"error": {"message": "not this", "content": "nor this"}}, ""),
}
STREAMED = {
    "chat": (
        [
            choice(delta={"role": "assistant", "content": ""}),
            choice(delta={"content": "Hel"}),
            choice(delta={"content": "lo."}),
            choice(delta={}, finish_reason="stop"),
        ],
        "Hello.",
    ),
    "chat, a call": (
        [
            choice(delta={"tool_calls": [{"index": 0, "function": {"name": "look", "arguments": ""}}]}),
            choice(delta={"tool_calls": [{"index": 0, "function": {"arguments": '{"up": 1}'}}]}),
        ],
        'look{"up": 1}',
    ),
    "completions": ([choice(text="Hel"), choice(text="lo.")], "Hello."),
    "responses": (
        [
            {"type": "response.created", "response": {"object": "response", "output": []}},
            {"type": "response.output_text.delta", "delta": "Hel"},
            {"type": "response.output_text.delta", "delta": "lo."},
            {"type": "response.output_text.done", "text": "Hello."},
            {
                "type": "response.completed",
                "response": {"output": [{"content": [{"type": "output_text", "text": "Hello."}]}]},
            },
        ],
        "Hello.",
    ),
    "messages": (
        [
            {"type": "message_start", "message": {"type": "message", "content": []}},
            {"type": "content_block_start", "content_block": {"type": "text", "text": ""}},
            {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "Hello."}},
            {
                "type": "content_block_start",
                "content_block": {"type": "tool_use", "name": "look", "input": {}},
            },
            {
                "type": "content_block_delta",
                "delta": {"type": "input_json_delta", "partial_json": '{"up": 1}'},
            },
            {"type": "message_delta", "delta": {"stop_reason": "end_turn"}},
        ],
        'Hello.look{"up": 1}',
    ),
}


@pytest.mark.parametrize("form", PLAIN)
def test_a_whole_answer(form: str) -> None:
    payload, text = PLAIN[form]
    assert text_of(json.dumps(payload, indent=1).encode()) == text


@pytest.mark.parametrize("form", STREAMED)
def test_a_stream_cut_off_anywhere(form: str) -> None:
    payloads, text = STREAMED[form]
    answer = events(*payloads) + b"data: [DONE]\n\n"
    assert text_of(answer) == text
    for end in range(1, len(answer)):
        assert text.startswith(text_of(answer[:end]))


@pytest.mark.parametrize("answer", [b'{"choices": [{"text": "cut', b"data: no json\n\n", b'{"a": ' * 100_000])
def test_what_is_no_answer_is_an_error(answer: bytes) -> None:
    with pytest.raises((ValueError, RecursionError)):
        text_of(answer)


@pytest.mark.parametrize(
    "payload", [[], 1, {"choices": [1, None]}, {"output": [None]}, {"content": {"text": 1}}]
)
def test_odd_answers_have_no_text(payload: object) -> None:
    assert text_of(b"data: " + json.dumps(payload).encode() + b"\n") == ""
