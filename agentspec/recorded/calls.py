"""Recorded model calls, parsed from JSON lines or a JSON list. docs/replay-engine.md has the forms.

Three kinds of record: a call, ``{"messages": [...], "response": ...}``; a call of text, ``{"prompt": TEXT,
"response": ...}``; a whole chat, ``{"messages": [...]}``, in which every answer of the assistant is a call.
``forms`` turns the logs of other projects into these.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import IO, Any

from agentspec.errors import ConfigError
from agentspec.recorded.forms import native

OPEN, CLOSE = "<tool_call>", "</tool_call>"
MAX_NAMED = 3
NUM_LAST = 3  # messages at the end of a chat by which it is found again once its beginning is replaced
MAX_SHOWN = 40  # characters of an invalid value: a line may be long, and holds user data

Message = Mapping[str, Any]
Prompt = str | Sequence[Message]


@dataclass(frozen=True, slots=True)
class RecordedAnswer:
    """One answer of a model.

    Attributes:
        calls: calls of tools, each the name and the arguments as JSON text.
        is_cut: True if the length limit ended it.
    """

    text: str
    calls: tuple[tuple[str, str], ...] = ()
    is_cut: bool = False

    def message(self) -> Message:
        """Return the answer as a message."""
        calls = [{"function": {"name": name, "arguments": arguments}} for name, arguments in self.calls]
        return {"role": "assistant", "content": self.text, "tool_calls": calls}

    def written(self) -> str:
        """Return the answer as text, with its tool calls in the form of Hermes and Qwen."""
        written = [_written_call(name, arguments) for name, arguments in self.calls]
        text = self.text.rstrip() if written else self.text
        return "\n".join([text, *written] if text else written)


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """One model call: raw text or chat messages (OpenAI form), and the answers, one per choice.

    Attributes:
        line: its number in the file.
        tools: schemas of the tools that it offers, in the form of its API.
        stage, session, group: as recorded; calls of a group, such as the trials of a task, belong together.
        first_line: number of the record that begins its chat; ``line`` if it continues none.
    """

    line: int
    prompt: Prompt
    answers: tuple[RecordedAnswer, ...]
    tools: tuple[Any, ...] = ()
    stage: str | None = None
    session: str | None = None
    group: str | None = None
    first_line: int = 0


@dataclass(slots=True)
class Skipped:
    """The records of a file that are no calls, and the answers that a file holds several times.

    Attributes:
        num_records: how many could not be read.
        reasons: of the first ones, each with file and line.
        num_again: answers of growing chats that earlier, shorter records of the same chat hold already.
    """

    num_records: int = 0
    reasons: list[str] = field(default_factory=list)
    num_again: int = 0

    def add(self, reason: str) -> None:
        """Count a record that is no call."""
        self.num_records += 1
        if len(self.reasons) < MAX_NAMED:
            self.reasons.append(reason)

    def lines(self, name: str) -> Iterator[str]:
        """Yield lines of text about records of this file that were left out."""
        if self.num_records:
            yield f"{name}: {self.num_records} records are no calls and were left out; the first ones:"
            yield from (f"  {reason}" for reason in self.reasons)
        if self.num_again:
            yield (
                f"{name}: {self.num_again} answers stand again in later records of the same growing chats;"
                " each was counted once"
            )


def read(path: Path, skipped: Skipped | None = None) -> Iterator[RecordedCall]:
    """Yield the calls of a ``*.jsonl`` or ``*.jsonl.gz`` file, or of a list in a ``*.json`` file, in order.

    Args:
        skipped: counts records that are no calls; None = the first one is an error.

    Raises:
        ConfigError: the file can't be read, or a record is no call. The message has file, line and reason.
    """
    chats = _GrowingChats(is_exact=skipped is None)
    for number, text in _texts(path):
        try:
            calls = [call for record in native(_object(text)) for call in _calls(record, number, chats)]
        except (ConfigError, ValueError, RecursionError) as error:
            reason = f"{path}:{number}: {error}"
            if skipped is None:
                raise ConfigError(reason) from None
            skipped.add(reason)
            continue
        if skipped is not None:
            skipped.num_again = chats.num_again
        yield from calls


def read_lines(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield number and JSON object of each record. Raises ConfigError."""
    for number, text in _texts(path):
        try:
            yield number, _object(text)
        except (ConfigError, ValueError, RecursionError) as error:
            raise ConfigError(f"{path}:{number}: {error}") from None


def _texts(path: Path) -> Iterator[tuple[int, str | Any]]:
    """Yield number and text of each non-empty line, or of each value of a list. Raises ConfigError."""
    number = 0
    try:
        with _open(path) as lines:
            for number, line in enumerate(lines, 1):
                if number == 1 and (line.lstrip().startswith("[") or _is_cut(line)):
                    whole = json.loads(line + lines.read())
                    yield from enumerate(whole if isinstance(whole, list) else [whole], 1)
                    return
                if line.strip():
                    yield number, line
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path}: the list is no JSON: {error}") from None
    except RecursionError:
        raise ConfigError(f"{path}: its JSON is nested too deeply") from None
    except (EOFError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}:{number + 1}: the file is damaged: {error}") from None
    except OSError as error:
        raise ConfigError(f"can't read {str(path)!r}: {error.strerror or error}") from None


def _is_cut(line: str) -> bool:
    """Return True for the first line of an object that is written over several lines."""
    return line.strip() == "{"


def _open(path: Path) -> IO[str]:
    encoding = "utf-8-sig"  # some programs begin a file with a byte order mark
    return gzip.open(path, "rt", encoding=encoding) if path.suffix == ".gz" else path.open(encoding=encoding)


def _object(text: object) -> Mapping[str, Any]:
    record = json.loads(text) if isinstance(text, str) else text
    if not isinstance(record, dict):
        raise ConfigError(f"a record is a JSON object, not {_shown(record)}")
    return record


def _calls(record: Mapping[str, Any], number: int, chats: _GrowingChats) -> Iterator[RecordedCall]:
    """Yield the calls of a record in our own form, without answers of an earlier record of the same chat."""
    tags: dict[str, Any] = {
        "tools": tuple(record.get("tools") or ()),
        "stage": _tag(record, "stage"),
        "session": _tag(record, "session"),
        "group": _tag(record, "task") or _tag(record, "db"),
    }
    if "messages" not in record:
        prompt = record.get("prompt")
        if not isinstance(prompt, str):
            raise ConfigError(f"'prompt' must be a text, not {_shown(prompt)}")
        yield RecordedCall(
            number, prompt, tuple(read_answers(record.get("response"))), first_line=number, **tags
        )
        return
    messages = read_messages(record["messages"])
    if "response" in record:
        answers = tuple(read_answers(record["response"]))
        answered = [*messages, answers[0].message()] if answers else messages
        _, tags["first_line"] = chats.enter(answered, number)
        yield RecordedCall(number, messages, answers, **tags)
        return
    num_known, tags["first_line"] = chats.enter(messages, number)
    for index, message in enumerate(messages):
        answer = _answer(message) if message["role"] == "assistant" else None
        if answer is None or not (answer.text or answer.calls):
            continue
        if index < num_known:
            chats.num_again += 1
        else:
            yield RecordedCall(number, messages[:index], (answer,), **tags)


def _tag(record: Mapping[str, Any], name: str) -> str | None:
    """Return a tag as text; numbers are written, null and empty texts are absent."""
    value = record.get(name)
    if value is None or value == "":
        return None
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ConfigError(f"{name!r} must be a text, not {_shown(value)}")
    return str(value)


class _GrowingChats:
    """Finds chats that were logged whole at each call: a record begins with all messages of an earlier one.

    Programs edit the system prompt from call to call (the date), and replace old parts by a summary: system
    prompts are not compared, and the last three messages of an earlier record stand for all of it. If
    ``is_exact``, all messages have to be equal: an engine that replays the calls needs each prompt.

    Only the answers behind those messages are new. A record that is equal to an earlier one has no more
    messages, and all its answers count: drafts gain from two runs of a program that have the same chat.

    Attributes:
        num_again: answers that were not new.
    """

    def __init__(self, *, is_exact: bool) -> None:
        self.num_again = 0
        self._is_exact = is_exact
        self._lines: dict[bytes, int] = {}  # by digest of all messages: where the chat begins

    def enter(self, messages: Sequence[Message], line: int) -> tuple[int, int]:
        """Return how many messages an earlier record has, and the line of the chat's first record."""
        turns = [
            (index, _turn(message))
            for index, message in enumerate(messages)
            if self._is_exact or message["role"] not in ("system", "developer")
        ]
        digests = _digests([turn for _, turn in turns], 0 if self._is_exact else NUM_LAST)
        num_known, first = 0, line
        for number in range(len(turns) - 1, 0, -1):
            found = next((self._lines[one] for one in digests[number - 1] if one in self._lines), None)
            if found is not None:
                num_known, first = turns[number - 1][0] + 1, found
                break
        if digests:
            self._lines.update(dict.fromkeys(digests[-1], first))
        return num_known, first


def _turn(message: Message) -> bytes:
    return json.dumps([message["role"], said(message), list(tool_calls(message))]).encode()


def _digests(turns: Sequence[bytes], num_last: int) -> list[tuple[bytes, ...]]:
    """Return, up to each turn, a digest of all turns, and one of the last ``num_last``, if any."""
    hashed = blake2b(digest_size=16)
    digests: list[tuple[bytes, ...]] = []
    for number, turn in enumerate(turns, 1):
        hashed.update(turn)
        last = b"".join(turns[number - num_last : number]) if number >= num_last else b""
        digests.append((hashed.digest(), *([blake2b(last, digest_size=16).digest()] if last else [])))
    return digests


def read_messages(messages: object) -> list[Message]:
    """Return messages in OpenAI's form. Raises ConfigError if they are invalid."""
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise ConfigError(f"'messages' must be a list of objects, not {_shown(messages)}")
    for message in messages:
        if not isinstance(message.get("role"), str):
            raise ConfigError(f"'role' must be a text, not {_shown(message.get('role'))}")
        said(message)
        list(tool_calls(message))
    return messages


def read_answers(response: object) -> Iterator[RecordedAnswer]:
    """Yield the answers in a text, a message, or a body of chat or text completions. Raises ConfigError."""
    if isinstance(response, str):
        yield RecordedAnswer(response)
    elif isinstance(response, Mapping) and isinstance(response.get("choices"), list) and response["choices"]:
        for choice in response["choices"]:
            if not isinstance(choice, Mapping):
                raise ConfigError(f"a choice must be an object, not {_shown(choice)}")
            message = choice.get("message", {"content": choice.get("text")})
            yield _answer(message, is_cut=choice.get("finish_reason") == "length")
    elif isinstance(response, Mapping) and not response.keys().isdisjoint(("content", "tool_calls")):
        yield _answer(response, is_cut=response.get("finish_reason") == "length")
    else:
        raise ConfigError(f"'response' must be a text, a message or a completion, not {_shown(response)}")


def _answer(message: object, is_cut: bool = False) -> RecordedAnswer:
    if not isinstance(message, Mapping):
        raise ConfigError(f"a message must be an object, not {_shown(message)}")
    return RecordedAnswer(said(message), tuple(tool_calls(message)), is_cut)


def said(message: Message) -> str:
    """Return the text of a message; parts are lines, as the gateway reads them. Raises ConfigError."""
    content = message.get("content")
    if content is None or isinstance(content, str):
        return content or ""
    texts = [part.get("text") if isinstance(part, dict) else None for part in _list(content, "content")]
    if not all(isinstance(text, str) for text in texts):
        raise ConfigError("'content' must be a text or a list of parts of text")
    return "\n".join(map(str, texts))


def tool_calls(message: Message) -> Iterator[tuple[str, str]]:
    """Yield name and arguments, as JSON text, of each tool call. Raises ConfigError."""
    for call in _list(message.get("tool_calls") or [], "tool_calls"):
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise ConfigError(f"a call of a tool has a function with a name, not {_shown(call)}")
        arguments = function.get("arguments")
        yield function["name"], arguments if isinstance(arguments, str) else json.dumps(arguments or {})


def _list(value: object, name: str) -> list[Any]:
    if not isinstance(value, list):
        raise ConfigError(f"{name!r} must be a list, not {_shown(value)}")
    return value


def _shown(value: object) -> str:
    return repr(value)[:MAX_SHOWN]


def _written_call(name: str, arguments: str) -> str:
    """Return a tool call in the templates' form. Arguments that can't be written as an object stay text."""
    try:
        parsed = json.loads(arguments)
        given = json.dumps(
            parsed if isinstance(parsed, dict) else arguments, ensure_ascii=False, allow_nan=False
        )
        given.encode()
    except (ValueError, RecursionError):  # also for a number or a character that only escapes can write
        given = json.dumps(arguments, ensure_ascii=False)
    return "\n".join(
        [OPEN, f'{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments": {given}}}', CLOSE]
    )
