"""Reads the text in the first bytes of a response of any of the four APIs: JSON or server-sent events."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

_TEXTS = ("reasoning", "reasoning_content", "content", "text", "name", "arguments", "partial_json", "input")
_PARTS = ("message", "delta", "function", "content_block")
_LISTS = ("tool_calls", "content", "output")
_DELTAS = ("response.output_text.delta", "response.function_call_arguments.delta")


def text_of(answer: bytes) -> str:
    """Return the text of the first choice, including names and arguments of tool calls.

    A stream of events may end anywhere; JSON must be complete. Raises ValueError if the bytes are neither.
    """
    if answer.lstrip()[:1] == b"{":
        return "".join(_of_payload(json.loads(answer)))
    whole, _, _ = answer.rpartition(b"\n")
    events = (
        line[5:] for line in whole.splitlines() if line.startswith(b"data:") and line[5:].strip() != b"[DONE]"
    )
    return "".join(text for event in events for text in _of_payload(json.loads(event)))


def _of_payload(payload: object) -> Iterator[str]:
    if not isinstance(payload, dict):
        return
    kind, delta = payload.get("type"), payload.get("delta")
    if isinstance(delta, str):
        if kind in _DELTAS:
            yield delta
    elif isinstance(choices := payload.get("choices"), list):
        for choice in choices:
            if isinstance(choice, dict) and not choice.get("index"):
                yield from _of_part(choice)
    elif (
        kind in (None, "message", "content_block_start", "content_block_delta")
        or payload.get("object") == "response"
    ):
        yield from _of_part(payload)


def _of_part(part: Mapping[str, Any]) -> Iterator[str]:
    for name, value in part.items():
        if isinstance(value, str) and name in _TEXTS:
            yield value
        elif isinstance(value, dict) and name in _PARTS:
            yield from _of_part(value)
        elif isinstance(value, dict) and name == "input" and value:
            yield json.dumps(value)
        elif isinstance(value, list) and name in _LISTS:
            for one in value:
                if isinstance(one, dict):
                    yield from _of_part(one)
