"""Recorded model calls: JSON lines in, token ids out.

Three forms of line. A call: ``{"prompt": text, "response": text}``, with ``session``, ``stage``, ``step``,
``task`` where they are known. The same in OpenAI's form: ``{"messages": [...], "response": ...}``, as
``agentspec serve --engine replay`` reads it. A chat: ``{"messages": [...]}``, in which every answer of the
assistant is a call whose prompt is everything before it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from agentspec.errors import ConfigError
from agentspec.forest import Tokens
from agentspec.recorded.calls import read_answers, read_lines, read_messages

Encode = Callable[[str], Tokens]

DEFAULT_STAGE = "default"
END = 1 << 24  # beyond every vocabulary; after each response: that it ends has to be verified too


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """One model call as text.

    Attributes:
        session: the run of the workflow that it belongs to; calls without one are each their own.
        group: what may not be divided between halves, such as the trials of one task.
    """

    stage: str
    session: str
    group: str
    prompt: str
    response: str

    def half(self) -> int:
        """0 or 1, by the group's name: what is tuned on one half is reported on the other."""
        return crc32(self.group.encode()) & 1


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """One model call as int32 token ids; the response ends with a token of its own."""

    stage: str
    session: str
    prompt: Tokens
    response: Tokens


def read(path: Path) -> Iterator[RecordedCall]:
    """The calls of a ``*.jsonl`` or ``*.jsonl.gz`` file, in order.

    Raises:
        ConfigError: a line is no call; file, line and what is wrong are named.
    """
    for number, record in read_lines(path):
        try:
            yield from _calls(record, f"{path.name}:{number}")
        except ConfigError as error:
            raise ConfigError(f"{path}:{number}: {error}") from None


def _calls(record: Mapping[str, Any], place: str) -> Iterator[RecordedCall]:
    stage = _text(record, "stage", DEFAULT_STAGE)
    session = _text(record, "session", place)
    group = str(record.get("task") or record.get("db") or session)
    asked = record.get("request", record)
    if isinstance(asked, dict) and "messages" in asked:
        for prompt, response in _chat(asked["messages"], record.get("response")):
            yield RecordedCall(stage, session, group, prompt, response)
    else:
        yield RecordedCall(stage, session, group, _text(record, "prompt"), _text(record, "response"))


def _text(record: Mapping[str, Any], key: str, default: str | None = None) -> str:
    value = record.get(key, default)
    if not isinstance(value, str):
        raise ConfigError(f"{key!r} must be a text, not {value!r}")
    return value


def _chat(messages: object, response: object) -> Iterator[tuple[str, str]]:
    """Prompt and answer of each call: the response, if there is one, else all that the assistant said."""
    if response is None:
        yield from _turns(messages)
        return
    for answer in read_answers(response):
        calls = [{"function": {"name": name, "arguments": arguments}} for name, arguments in answer.calls]
        message = {"role": "assistant", "content": answer.text, "tool_calls": calls}
        before = read_messages(messages)
        yield from _turns([*before, message], len(before))


def _turns(messages: object, first: int = 0) -> Iterator[tuple[str, str]]:
    """Everything before each answer of the assistant from the ``first`` message on, and the answer."""
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise ConfigError(f"'messages' must be a list of objects, not {str(messages)[:40]!r}")
    before = ""
    for number, message in enumerate(messages):
        role, said = _text(message, "role"), _said(message)
        if role == "assistant" and said and number >= first:
            yield before + "<|assistant|>\n", said
        before += f"<|{role}|>\n{said}\n"


def _said(message: Mapping[str, Any]) -> str:
    """Text and tool calls of a message, as a model would have written them."""
    content = message.get("content") or ""
    if isinstance(content, list):
        content = "".join(part.get("text", "") for part in content if isinstance(part, dict))
    called = [call.get("function", {}) for call in message.get("tool_calls") or []]
    lines = [json.dumps({"name": one.get("name"), "arguments": one.get("arguments")}) for one in called]
    return "\n".join([str(content), *lines] if content else lines)


def encoded(record: RecordedCall, encode: Encode) -> Call:
    """The call as token ids."""
    response = np.append(encode(record.response), np.int32(END))
    return Call(record.stage, record.session, encode(record.prompt), response)
