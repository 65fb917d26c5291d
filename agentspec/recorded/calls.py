"""Recorded model calls, parsed from JSON lines. docs/replay-engine.md has the form.

Three forms of line: a call, ``{"messages": [...], "response": ...}``; a call of text, ``{"prompt": TEXT,
"response": ...}``; a whole chat, ``{"messages": [...]}``, in which every answer of the assistant is a call.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from agentspec.errors import ConfigError

OPEN, CLOSE = "<tool_call>", "</tool_call>"
CLOSE_IN_TEXT = r"<\/tool_call>"  # the same in JSON, without ending the call
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

    def written(self) -> str:
        """Return the answer as text, with its tool calls in the form of Hermes and Qwen."""
        written = [_written_call(name, arguments) for name, arguments in self.calls]
        text = self.text.rstrip() if written else self.text
        return "\n".join([text, *written] if text else written)


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """One model call: raw text or chat messages (OpenAI form), and the answers, one per choice.

    ``line`` is its number in the file.
    """

    line: int
    prompt: Prompt
    answers: tuple[RecordedAnswer, ...]


def read(path: Path) -> Iterator[RecordedCall]:
    """Yield the calls of a ``*.jsonl`` or ``*.jsonl.gz`` file, in order.

    Raises:
        ConfigError: the file can't be read, or a line is not a call. The message has file, line and reason.
    """
    for number, record in read_lines(path):
        try:
            yield from _calls(record, number)
        except ConfigError as error:
            raise ConfigError(f"{path}:{number}: {error}") from None


def read_lines(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield the line number and the JSON object of each non-empty line. Raises ConfigError."""
    number = 0
    try:
        with _open(path) as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield number, _object(line)
    except (ConfigError, json.JSONDecodeError) as error:
        raise ConfigError(f"{path}:{number}: {error}") from None
    except (EOFError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}:{number + 1}: the file is damaged: {error}") from None
    except OSError as error:
        raise ConfigError(f"can't read {str(path)!r}: {error.strerror or error}") from None


def _open(path: Path) -> IO[str]:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8")
    return path.open(encoding="utf-8")


def _object(line: str) -> Mapping[str, Any]:
    record = json.loads(line)
    if not isinstance(record, dict):
        raise ConfigError(f"a line is a JSON object, not {line[:MAX_SHOWN]!r}")
    return record


def _calls(record: Mapping[str, Any], number: int) -> Iterator[RecordedCall]:
    asked = record.get("request", record)
    if not isinstance(asked, Mapping):
        raise ConfigError(f"'request' must be an object, not {_shown(asked)}")
    if "messages" in asked:
        messages = read_messages(asked["messages"])
        if "response" in record:
            yield RecordedCall(number, messages, tuple(read_answers(record["response"])))
            return
        for index, message in enumerate(messages):
            answer = _answer(message) if message["role"] == "assistant" else None
            if answer is not None and (answer.text or answer.calls):
                yield RecordedCall(number, messages[:index], (answer,))
        return
    prompt = asked.get("prompt")
    if not isinstance(prompt, str):
        raise ConfigError(f"a call has 'messages', or 'prompt' as a text, not {_shown(prompt)}")
    yield RecordedCall(number, prompt, tuple(read_answers(record.get("response"))))


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
    """Return a tool call in the templates' form. Arguments that are not an object stay text."""
    try:
        parsed = json.loads(arguments)
    except (ValueError, RecursionError):
        parsed = None
    given = parsed if isinstance(parsed, dict) else arguments
    call = json.dumps({"name": name, "arguments": given}, ensure_ascii=False)
    return "\n".join([OPEN, call.replace(CLOSE, CLOSE_IN_TEXT), CLOSE])
