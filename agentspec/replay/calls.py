"""Recorded model calls: JSON lines in, token ids out.

A line has one of three forms:

- A call: ``{"prompt": text, "response": text}``, with optional ``session``, ``stage``, ``step`` and ``task``.
- A call in OpenAI's form: ``{"messages": [...], "response": ...}``. ``agentspec serve --engine replay`` reads
  the same form.
- A chat: ``{"messages": [...]}``. Each assistant message is a call. Its prompt is everything before it.
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
END = 1 << 24  # beyond every vocabulary; follows each response, so that its end must be verified too


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """One model call as text.

    Attributes:
        session: the workflow run of the call. A call without one is a session of its own.
        group: calls that must stay in the same half, such as the trials of one task.
    """

    stage: str
    session: str
    group: str
    prompt: str
    response: str

    def half(self) -> int:
        """Return 0 or 1, by the group's name. Tune on one half and report on the other."""
        return crc32(self.group.encode()) & 1


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """One model call as int32 token ids. The response ends with the token END."""

    stage: str
    session: str
    prompt: Tokens
    response: Tokens


def read(path: Path) -> Iterator[RecordedCall]:
    """Yield the calls of a ``*.jsonl`` or ``*.jsonl.gz`` file, in order.

    Raises:
        ConfigError: a line is not a call. The message names the file, the line and the fault.
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
    """Yield prompt and answer of each call.

    If there is a response, its answers are the calls. Otherwise each assistant message is one.
    """
    if response is None:
        yield from _turns(messages)
        return
    for answer in read_answers(response):
        calls = [{"function": {"name": name, "arguments": arguments}} for name, arguments in answer.calls]
        message = {"role": "assistant", "content": answer.text, "tool_calls": calls}
        before = read_messages(messages)
        yield from _turns([*before, message], len(before))


def _turns(messages: object, first: int = 0) -> Iterator[tuple[str, str]]:
    """Yield each assistant message from index ``first`` on, with everything before it as its prompt."""
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise ConfigError(f"'messages' must be a list of objects, not {str(messages)[:40]!r}")
    before = ""
    for number, message in enumerate(messages):
        role, said = _text(message, "role"), _said(message)
        if role == "assistant" and said and number >= first:
            yield before + "<|assistant|>\n", said
        before += f"<|{role}|>\n{said}\n"


def _said(message: Mapping[str, Any]) -> str:
    """Return text and tool calls of a message in the form that a model would write them."""
    content = message.get("content") or ""
    if isinstance(content, list):
        content = "".join(part.get("text", "") for part in content if isinstance(part, dict))
    called = [call.get("function", {}) for call in message.get("tool_calls") or []]
    lines = [json.dumps({"name": one.get("name"), "arguments": one.get("arguments")}) for one in called]
    return "\n".join([str(content), *lines] if content else lines)


def encoded(record: RecordedCall, encode: Encode) -> Call:
    """Return the call as token ids."""
    response = np.append(encode(record.response), np.int32(END))
    return Call(record.stage, record.session, encode(record.prompt), response)
