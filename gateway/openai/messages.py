"""Reading of chat messages as agents keep them in histories: with nulls, old forms and parts of several APIs.

An agent sends each message again with every later turn, so a refused message would end the conversation.
Every answer of an API is therefore accepted as input: parts of OpenAI's, vLLM's and Anthropic's.
Templates know roles, text and calls of functions. A response header names the parts that were left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentspec.errors import RequestError
from agentspec.gateway.http.api_response import RawHeader
from agentspec.wire import LEFT_OUT_HEADER, MAX_PREDICTION_CHARS

# types of parts, and the member that holds the text
TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
# reasoning, and calls of the server's own tools: the text that follows from them is in the history, too
LEFT_OUT_PARTS = frozenset(
    (
        "reasoning",
        "reasoning_text",
        "redacted_thinking",
        "server_tool_use",
        "summary_text",
        "thinking",
        "web_search_tool_result",
    )
)
MAX_NAMES = 16
OTHER = "other"
_KIND = re.compile(r"[A-Za-z0-9_.-]{1,40}")
ROLES = {"developer": "system", "function": "tool"}  # names of roles that templates do not know
# members that are read into the text or the calls of the message
READ_MEMBERS = frozenset(("audio", "content", "function_call", "refusal", "role", "tool_calls"))


@dataclass(slots=True)
class Content:
    """The parts of one content.

    Attributes:
        texts: text of each text part.
        calls: ``tool_use`` parts, in the form of chat's ``tool_calls``.
        results: ``tool_result`` parts, as messages of the role ``tool``.
    """

    texts: list[str] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    results: list[dict[str, Any]] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The texts, joined by newlines as in vLLM."""
        return "\n".join(self.texts)


def read_content(content: object, param: str, left_out: LeftOut) -> Content:
    """Return the parts of ``content``. ``None`` has none.

    Raises:
        RequestError: a part is neither text nor a call, for example an image. The error names ``param``.
    """
    if content is None or isinstance(content, str):
        return Content([content] if content else [])
    if not isinstance(content, list):
        raise RequestError(f"{param} must be a string or a list of text parts, not {content!r}", param=param)
    read = Content()
    for index, part in enumerate(content):
        _add(read, part, f"{param}[{index}]", left_out)
    return read


def read_text(content: object, param: str, left_out: LeftOut | None = None) -> str:
    """Return the text of ``content``. Raises RequestError for other parts, as :func:`read_content`."""
    read = read_content(content, param, left_out or LeftOut())
    if read.calls or read.results:
        raise RequestError(f"{param} must hold text, and has a call of a tool or its result", param=param)
    return read.text


def read_output(output: object, param: str, left_out: LeftOut) -> str:
    """Return the output of a tool as text. One that is no text and has no text parts is shown as JSON."""
    if output is None or isinstance(output, str) or _has_parts(output):
        return read_text(output, param, left_out)
    return json_text(output)


def json_text(value: object) -> str:
    """Return ``value`` as JSON, as it would stand in a call's arguments."""
    return json.dumps(value, ensure_ascii=False)


def _has_parts(output: object) -> bool:
    return isinstance(output, list) and all(map(_is_part, output))


def _is_part(value: object) -> bool:
    return isinstance(value, str) or (isinstance(value, dict) and "type" in value)


def _add(read: Content, part: object, param: str, left_out: LeftOut) -> None:
    if isinstance(part, str):  # vLLM takes them, too
        read.texts.append(part)
        return
    kind = part.get("type") if isinstance(part, dict) else None
    if isinstance(part, dict) and isinstance(kind, str):
        if kind in TEXT_PARTS and isinstance(text := part.get(TEXT_PARTS[kind]) or "", str):
            read.texts.append(text)
            return
        if kind in LEFT_OUT_PARTS:
            left_out.add("messages", kind)
            return
        if kind == "tool_use" and isinstance(name := part.get("name"), str):
            function = {"name": name, "arguments": json_text(part.get("input") or {})}
            read.calls.append({"id": part.get("id"), "type": "function", "function": function})
            return
        if kind == "tool_result":
            text = read_output(part.get("content"), f"{param}.content", left_out)
            read.results.append({"role": "tool", "tool_call_id": part.get("tool_use_id"), "content": text})
            return
    raise RequestError(f"{param} must be a text part, not of type {kind!r}", param=param)


def read_prediction(body: Mapping[str, Any]) -> str | None:
    """Return the predicted text, or None. Raises RequestError if it is malformed or too long."""
    prediction = body.get("prediction")
    if prediction is None:
        return None
    if not isinstance(prediction, dict):
        raise RequestError(
            f"prediction must be an object, not {prediction!r}", param="prediction", code="invalid_value"
        )
    if prediction.get("content") is None:
        raise RequestError("prediction.content is missing", param="prediction.content")
    text = read_text(prediction["content"], "prediction.content")
    if len(text) > MAX_PREDICTION_CHARS:
        raise RequestError(
            f"prediction.content has at most {MAX_PREDICTION_CHARS} characters, not {len(text)}",
            param="prediction.content",
            code="invalid_value",
        )
    return text


class LeftOut:
    """Kinds of parts, items and tools of one request that are left out, such as ``tools.mcp``, each once."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def add(self, field: str, kind: str) -> None:
        """Add a kind, which the client may have chosen: only its plain characters reach the header."""
        name = f"{field}.{kind if _KIND.fullmatch(kind) else OTHER}"
        if name not in self.names and len(self.names) < MAX_NAMES:
            self.names.append(name)

    def headers(self) -> list[RawHeader]:
        """Return the header of the response; nothing if nothing is left out."""
        return [(LEFT_OUT_HEADER.encode(), ", ".join(self.names).encode())] if self.names else []


Message = dict[str, Any]


def read_messages(messages: Sequence[Mapping[str, Any]], left_out: LeftOut | None = None) -> list[Message]:
    """Return the messages with contents as text, and roles and calls that templates support.

    Raises:
        RequestError: a message can't be shown to the model without a change of its meaning.
    """
    names = left_out or LeftOut()
    return [
        one for index, message in enumerate(messages) for one in _read(message, f"messages[{index}]", names)
    ]


def template_role(role: object, param: str) -> str:
    """Return the role under the name that templates support. Raises RequestError if it is not a name."""
    if not isinstance(role, str) or not role:
        raise RequestError(f"{param} must be a string, not {role!r}", param=param)
    return ROLES.get(role, role)


def _read(given: Mapping[str, Any], param: str, left_out: LeftOut) -> Iterator[Message]:
    """Yield the message, after the results of tools that Anthropic's form puts into it."""
    role = template_role(given.get("role"), f"{param}.role")
    message: Message = {"role": role, "content": ""}
    message |= {
        name: value for name, value in given.items() if name not in READ_MEMBERS and value is not None
    }
    if role == "tool":
        message["content"] = read_output(given.get("content"), f"{param}.content", left_out)
        yield message
        return
    content = read_content(given.get("content"), f"{param}.content", left_out)
    message["content"] = content.text or _spoken(given, param)
    calls = [*_calls(given, param), *content.calls]
    if calls:
        message["tool_calls"] = calls
    yield from content.results
    if content.texts or not content.results:
        yield message


def _spoken(given: Mapping[str, Any], param: str) -> str:
    """Return the text of an answer without content: a refusal, or the words of its audio."""
    if isinstance(refusal := given.get("refusal"), str):
        return refusal
    audio = given.get("audio")
    if audio is None:
        return ""
    transcript = audio.get("transcript") if isinstance(audio, dict) else None
    if not isinstance(transcript, str):
        raise RequestError(
            f"{param}.audio has no transcript, and audio is not supported", param=f"{param}.audio"
        )
    return transcript


def _calls(given: Mapping[str, Any], param: str) -> Iterator[dict[str, Any]]:
    """Yield the calls of functions of ``tool_calls``, or of the older ``function_call``."""
    calls = given.get("tool_calls")
    if calls is not None and not isinstance(calls, list):
        raise RequestError(
            f"{param}.tool_calls must be a list of objects, not {calls!r}", param=f"{param}.tool_calls"
        )
    for index, call in enumerate(calls or ()):
        yield _call(call, f"{param}.tool_calls[{index}]")
    if given.get("function_call") is not None and not calls:
        function = _function(given["function_call"], f"{param}.function_call")
        yield {"id": f"call_{function['name']}", "type": "function", "function": function}


def _call(call: object, param: str) -> dict[str, Any]:
    if not isinstance(call, dict):
        raise RequestError(f"{param} must be an object, not {call!r}", param=param)
    if call.get("type") == "custom" and isinstance(custom := call.get("custom"), dict):
        name, arguments = custom.get("name"), json_text({"input": custom.get("input")})
        call = {"id": call.get("id"), "function": {"name": name, "arguments": arguments}}
    function = _function(call.get("function"), f"{param}.function")
    return {**call, "type": "function", "function": function}


def _function(function: object, param: str) -> dict[str, Any]:
    """Return a call's function with its arguments as JSON text. Missing arguments are none."""
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(function, dict) or not isinstance(name, str) or not name:
        raise RequestError(f"{param} must be an object with a name, not {function!r}", param=param)
    return {**function, "arguments": argument_text(function.get("arguments"))}


def argument_text(arguments: object) -> str:
    """Return the arguments of a call as JSON text, as a model wrote them; ``{}`` if there are none."""
    if isinstance(arguments, str):
        return arguments if arguments.strip() else "{}"
    return "{}" if arguments is None else json_text(arguments)
