"""Recorded model calls as texts, and as token ids. ``agentspec.recorded`` reads the files."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from agentspec.forest import Tokens
from agentspec.recorded import calls as recorded
from agentspec.recorded.calls import Skipped

Encode = Callable[[str], Tokens]

TEKKEN = "tekken"
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


def read(path: Path, skipped: Skipped | None = None) -> Iterator[RecordedCall]:
    """Yield the calls of a file, in order; each answer to a prompt is one.

    Args:
        skipped: counts records that are no calls; None = the first one is an error.

    Raises:
        ConfigError: a record is no call. The message names the file, the line and the fault.
    """
    for call in recorded.read(path, skipped):
        session = call.session or f"{path.name}:{call.first_line}"
        prompt = _prompt(call)
        for answer in call.answers:
            yield RecordedCall(
                call.stage or DEFAULT_STAGE, session, call.group or session, prompt, _written(answer)
            )


def _prompt(call: recorded.RecordedCall) -> str:
    """Return tools and messages as one text, role by role; raw text unchanged."""
    if isinstance(call.prompt, str):
        return call.prompt
    tools = [f"<|tools|>\n{json.dumps(call.tools, ensure_ascii=False)}\n"] if call.tools else []
    turns = (f"<|{message['role']}|>\n{_written(_answer(message))}\n" for message in call.prompt)
    return "".join([*tools, *turns, "<|assistant|>\n"])


def _answer(message: recorded.Message) -> recorded.RecordedAnswer:
    return recorded.RecordedAnswer(recorded.said(message), tuple(recorded.tool_calls(message)))


def _written(answer: recorded.RecordedAnswer) -> str:
    """Return text and tool calls, a line of JSON each, as a model writes them."""
    calls = [
        json.dumps({"name": name, "arguments": _parsed(text)}, ensure_ascii=False)
        for name, text in answer.calls
    ]
    return "\n".join([answer.text, *calls] if answer.text else calls)


def _parsed(arguments: str) -> Any:
    """Return the arguments' object; a text that is none stays a text."""
    try:
        parsed = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    return parsed if isinstance(parsed, dict) else arguments


def encoded(record: RecordedCall, encode: Encode) -> Call:
    """Return the call as token ids."""
    response = np.append(encode(_valid(record.response)), np.int32(END))
    return Call(record.stage, record.session, encode(_valid(record.prompt)), response)


def _valid(text: str) -> str:
    """Return the text, with a question mark for each half of a character that was cut in two."""
    return text.encode("utf-8", "replace").decode()


@lru_cache(maxsize=1)
def load_tokenizer(name: str) -> Encode:
    """Return a function that encodes text as int32 token ids, without special tokens.

    Args:
        name: ``"tekken"``, the tokenizer in the package mistral-common, or a folder with a tokenizer.json.

    Raises:
        CheckpointError: the folder has no readable tokenizer.json.
    """
    if name == TEKKEN:
        from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

        tekken = MistralTokenizer.v3(is_tekken=True).instruct_tokenizer.tokenizer
        return lambda text: np.array(tekken.encode(text, bos=False, eos=False), np.int32)
    from agentspec.engine.text.tokenizer import Tokenizer

    raw = Tokenizer.load(name).raw
    return lambda text: np.array(raw.encode(text, add_special_tokens=False).ids, np.int32)
