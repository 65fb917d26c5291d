"""Forms of logged model calls, turned into one: OpenAI's messages, tools, and a response.

A record is a JSON object of a log. Known forms: our own (``calls``), OpenAI's chat completions, completions,
Responses and batches, Anthropic's Messages, observations of Langfuse, and OpenTelemetry's spans of generative
AI, also as OTLP's JSON or with OpenLLMetry's numbered attributes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from agentspec.errors import ConfigError

Record = Mapping[str, Any]

ACCEPTED = (
    "accepted are calls (messages or prompt, with response), whole chats (messages), bodies of OpenAI's and"
    " Anthropic's APIs ({request, response}), OpenAI batches with their requests, Langfuse generations, and"
    " OpenTelemetry spans with gen_ai attributes"
)
TEXT_PARTS = frozenset(("text", "input_text", "output_text"))
MAX_SHOWN = 40  # characters of an invalid value: a line may be long, and holds user data


def native(record: Record) -> Iterator[Record]:
    """Yield the calls of a record in our own form: ``messages`` or ``prompt``, ``tools``, ``response``, tags.

    Raises:
        ConfigError: the record is of no known form, or no model call.
    """
    if "resourceSpans" in record:
        spans = list(_spans(record))
        for span in spans:
            yield from _of_span(span)
    elif isinstance(record.get("attributes"), Mapping | list):
        yield from _of_span(record)
    elif "traceId" in record and ("input" in record or "type" in record):
        yield _of_langfuse(record)
    elif "custom_id" in record:
        yield _of_batch(record)
    else:
        yield _of_api(record)


def _of_api(record: Record) -> Record:
    """Return a pair of bodies, or their fields side by side, in our own form."""
    asked = record.get("request", record)
    if not isinstance(asked, Mapping):
        raise ConfigError(f"'request' must be an object, not {_shown(asked)}")
    response = unwrapped(record.get("response", record.get("completion", record.get("output"))))
    call = {name: record[name] for name in ("stage", "session", "task", "db") if name in record}
    if "messages" in asked or "input" in asked:
        given = asked["messages"] if "messages" in asked else messages_of(asked["input"])
        call["messages"] = [*_system(asked), *messages_of(given)] if isinstance(given, list) else given
        call["tools"] = asked.get("tools")
    elif "prompt" in asked:
        call["prompt"] = asked["prompt"]
    else:
        raise ConfigError(f"no call in the fields {_shown(sorted(record))}; {ACCEPTED}")
    return call if response is None else {**call, "response": response_of(response)}


def _system(asked: Record) -> list[Any]:
    """Return ``system`` (Anthropic) or ``instructions`` (Responses) as a message."""
    text = asked.get("system", asked.get("instructions"))
    return [] if not text else messages_of([{"role": "system", "content": text}])


def _of_batch(record: Record) -> Record:
    """Return a line of an OpenAI batch: the request's line, with the ``response`` of the output's line."""
    answered = record.get("response")
    if record.get("error") or not isinstance(answered, Mapping) or answered.get("status_code", 200) != 200:
        raise ConfigError("a batch's line without an answer")
    if not isinstance(record.get("body"), Mapping):
        raise ConfigError(
            "a batch's output has no requests: add 'body' of the input's line with the same custom_id"
        )
    tags = {name: record[name] for name in ("stage", "session", "task", "db") if name in record}
    return _of_api({**tags, "request": record["body"], "response": answered.get("body")})


def _of_langfuse(record: Record) -> Record:
    kind = record.get("type", "GENERATION")
    if kind != "GENERATION":
        raise ConfigError(f"an observation of type {_shown(kind)} is no model call")
    given, output = _parsed(record.get("input")), _parsed(record.get("output"))
    if output is None:
        raise ConfigError("a generation without output")
    asked = given if isinstance(given, Mapping) and "messages" in given else {"messages": given}
    return _of_api(
        {
            "stage": record.get("name"),
            "session": record.get("sessionId") or record.get("traceId"),
            "request": asked,
            "response": output if isinstance(output, str | Mapping) else {"content": output},
        }
    )


def _spans(record: Record) -> Iterator[Record]:
    """Yield the spans of a line of OTLP's JSON."""
    for resource in _objects(record["resourceSpans"]):
        for scope in _objects(resource.get("scopeSpans")):
            yield from _objects(scope.get("spans"))


def _of_span(span: Record) -> Iterator[Record]:
    """Yield the call of a span with OpenTelemetry's attributes, or with OpenLLMetry's numbered ones."""
    found = _attributes(span.get("attributes"))
    messages = _parsed(found.get("gen_ai.input.messages"))
    answers = _parsed(found.get("gen_ai.output.messages"))
    if messages is None and answers is None:
        messages = _numbered(found, "gen_ai.prompt.")
        answers = _numbered(found, "gen_ai.completion.")
    if not answers:
        raise ConfigError("a span without gen_ai.output.messages is no model call")
    context = span.get("context")
    yield {
        "stage": found.get("gen_ai.agent.name") or span.get("name"),
        "session": found.get("gen_ai.conversation.id")
        or span.get("traceId")
        or span.get("trace_id")
        or (context.get("trace_id") if isinstance(context, Mapping) else None),
        "messages": [
            *messages_of([{"role": "system", "content": text}] if (text := _instructions(found)) else []),
            *messages_of(messages or []),
        ],
        "tools": _parsed(found.get("gen_ai.tool.definitions")),
        "response": {"choices": [{"message": one} for one in messages_of(answers)]},
    }


def _instructions(found: Record) -> Any:
    return _parsed(found.get("gen_ai.system_instructions"))


def _attributes(given: Any) -> dict[str, Any]:
    """Return attributes by name: an object, or OTLP's list of keys and typed values."""
    if isinstance(given, Mapping):
        return dict(given)
    return {str(one.get("key")): _value(one.get("value")) for one in _objects(given)}


def _value(typed: Any) -> Any:
    return next(iter(typed.values()), None) if isinstance(typed, Mapping) and len(typed) == 1 else typed


def _numbered(found: Record, prefix: str) -> list[dict[str, Any]]:
    """Return messages of attributes like ``gen_ai.prompt.0.content`` and ``...0.tool_calls.0.name``."""
    messages: dict[int, dict[str, Any]] = {}
    for name, value in found.items():
        if not (match := re.fullmatch(re.escape(prefix) + r"(\d+)\.(.+)", name)):
            continue
        message = messages.setdefault(int(match[1]), {"role": "assistant", "calls": {}})
        if called := re.fullmatch(r"tool_calls\.(\d+)\.(name|arguments)", match[2]):
            message["calls"].setdefault(int(called[1]), {})[called[2]] = value
        else:
            message[match[2]] = value
    for message in messages.values():
        calls = message.pop("calls")
        message["tool_calls"] = [{"function": calls[number]} for number in sorted(calls)]
    return [messages[number] for number in sorted(messages)]


# messages


def messages_of(given: Any) -> list[Any]:
    """Return messages of any API in the form of OpenAI's chat completions; a text is a user's message.

    Parts that are no text (images, thoughts) are left out. What is no message is returned as it is.
    """
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    if isinstance(given, Mapping):
        return messages_of([given])
    if not isinstance(given, list):
        return [given]
    return [message for one in given for message in (_messages(one) if isinstance(one, Mapping) else [one])]


def _messages(one: Record) -> Iterator[Any]:
    """Yield the messages of one message or item of a Responses input."""
    kind = one.get("type")
    if kind in ("function_call", "custom_tool_call"):
        yield {
            "role": "assistant",
            "tool_calls": [_called(one.get("name"), one.get("arguments", one.get("input")))],
        }
        return
    if kind in ("function_call_output", "custom_tool_call_output"):
        yield {"role": "tool", "content": _text(one.get("output"))}
        return
    if kind is not None and "role" not in one:  # reasoning, searches, ...
        return
    parts = one.get("parts", one.get("content"))
    if not isinstance(parts, list) or not all(isinstance(part, Mapping) for part in parts):
        yield one if "parts" not in one else {**one, "content": parts}
        return
    results = [part for part in parts if part.get("type") in ("tool_result", "tool_call_response")]
    for part in results:
        yield {
            "role": "tool",
            "content": _text(part.get("content", part.get("response", part.get("result")))),
        }
    calls = [
        _called(part.get("name"), part.get("input", part.get("arguments")))
        for part in parts
        if part.get("type") in ("tool_use", "tool_call")
    ]
    texts = [text for part in parts if (text := _part(part)) is not None]
    if texts or calls or not results:
        more = {"tool_calls": [*(one.get("tool_calls") or []), *calls]} if calls else {}
        yield {**{name: one[name] for name in one if name != "parts"}, "content": "\n".join(texts), **more}


def _part(part: Record) -> str | None:
    """Return the text of a part; None if it is of another kind."""
    if part.get("type", "text") not in TEXT_PARTS:
        return None
    text = part.get("text", part.get("content"))
    return text if isinstance(text, str) else None


def _called(name: Any, arguments: Any) -> dict[str, Any]:
    return {"function": {"name": name, "arguments": {} if arguments is None else arguments}}


def _text(value: Any) -> str:
    """Return a tool's result as text: parts of text are lines, other values are JSON."""
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, list) and all(isinstance(part, Mapping) for part in value):
        return "\n".join(text for part in value if (text := _part(part)) is not None)
    return json.dumps(value, ensure_ascii=False)


# responses


def response_of(response: Any) -> Any:
    """Return a response of any API as a text, a message or a completion of OpenAI's."""
    if isinstance(response, list):  # the output of the Responses API
        return _joined(messages_of(response), is_cut=False)
    if not isinstance(response, Mapping):
        return response
    if isinstance(response.get("output"), list):  # of the Responses API
        return _joined(messages_of(response["output"]), response.get("status") == "incomplete")
    if isinstance(response.get("choices"), list):
        return response
    if isinstance(response.get("content", response.get("parts")), list):  # Anthropic, OpenTelemetry
        return _joined(messages_of([response]), response.get("stop_reason") == "max_tokens")
    return response


def _joined(messages: Iterable[Any], is_cut: bool) -> Record:
    """Return the messages of one answer as one."""
    said = [message for message in messages if isinstance(message, Mapping)]
    texts = [message["content"] for message in said if isinstance(message.get("content"), str)]
    return {
        "role": "assistant",
        "content": "\n".join(filter(None, texts)),
        "tool_calls": [call for message in said for call in message.get("tool_calls") or []],
        "finish_reason": "length" if is_cut else "stop",
    }


def unwrapped(response: Any) -> Any:
    """Return the object of a response that was logged as a text of JSON; an answer in JSON stays a text."""
    parsed = _parsed(response)
    if not isinstance(parsed, Mapping) or parsed is response:
        return response
    is_body = (
        (isinstance(parsed.get("choices"), list) and parsed["choices"])
        or (parsed.get("object") == "response" and isinstance(parsed.get("output"), list))
        or (parsed.get("type") == "message" and isinstance(parsed.get("content"), list))
        or (parsed.get("role") == "assistant" and "content" in parsed)
    )
    return parsed if is_body else response


def _parsed(value: Any) -> Any:
    """Return the JSON value of a text that holds an object or a list, else the value itself."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value
    return value


def _objects(value: Any) -> Iterator[Record]:
    yield from (one for one in value if isinstance(one, Mapping)) if isinstance(value, list) else ()


def _shown(value: object) -> str:
    return repr(value)[:MAX_SHOWN]
