"""Forms of logged model calls, turned into one: OpenAI's messages, tools, and a response.

A record is a JSON object of a log. Known forms: our own (``calls``), OpenAI's chat completions, completions,
Responses and batches, Anthropic's Messages and batches, LiteLLM's logs, observations of Langfuse, runs of
LangSmith, and OpenTelemetry's spans of generative AI, also as OTLP's JSON or with the numbered attributes of
OpenLLMetry and OpenInference.
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
    " Anthropic's APIs ({request, response}), batches with their requests, LiteLLM's logs, Langfuse"
    " generations, LangSmith runs, and OpenTelemetry spans with gen_ai attributes"
)
TEXT_PARTS = frozenset(("text", "input_text", "output_text", "refusal"))
LISTS = ("data", "observations", "runs")  # of the calls in an export
ROLES = {"human": "user", "ai": "assistant", "AIMessageChunk": "assistant", "function": "tool"}  # LangChain's
MAX_SHOWN = 40  # characters of an invalid value: a line may be long, and holds user data


def native(record: Record) -> Iterator[Record]:
    """Yield the calls of a record in our own form: ``messages`` or ``prompt``, ``tools``, ``response``, tags.

    Raises:
        ConfigError: the record is of no known form, or no model call.
    """
    is_plain = not record.keys().isdisjoint(("messages", "prompt", "request"))
    exported = next((record[name] for name in LISTS if isinstance(record.get(name), list)), None)
    if exported is not None and not is_plain:
        yield from (call for one in _calls_among(exported) for call in native(one))
    elif "resourceSpans" in record or "resourceLogs" in record:
        for span in _calls_among(_spans(record)):
            yield from _of_span(span)
    elif isinstance(record.get("attributes"), Mapping | list):
        yield from _of_span(record)
    elif not is_plain and {"traceId", "trace_id"} & {*record} and {"input", "type"} & {*record}:
        yield _of_langfuse(record)
    elif "run_type" in record:
        yield _of_langsmith(record)
    elif "custom_id" in record:
        yield _of_batch(record)
    else:
        yield _of_api(record)


def _calls_among(records: Iterable[Any]) -> list[Record]:
    """Return the model calls of an export or a trace. Raises ConfigError if there are none."""
    calls = [one for one in records if isinstance(one, Mapping) and _may_be_call(one)]
    if not calls:
        raise ConfigError("no model call among its observations or spans")
    return calls


def _may_be_call(one: Record) -> bool:
    if "attributes" in one or "events" in one:
        found = _found(one)
        return any(name.startswith(("gen_ai.output.", "gen_ai.completion.", "llm.output_")) for name in found)
    return (one.get("type", "GENERATION"), one.get("run_type", "llm")) == ("GENERATION", "llm")


def _of_api(record: Record) -> Record:
    """Return a pair of bodies, or their fields side by side, in our own form."""
    asked = _parsed(_first(record, "request", "request_body", "proxy_server_request") or record)
    if not isinstance(asked, Mapping):
        raise ConfigError(f"'request' must be an object, not {_shown(asked)}")
    if isinstance(body := _parsed(asked.get("body")), Mapping):  # an HTTP request
        asked = body
    response = unwrapped(_first(record, "response", "response_body", "completion", "output"))
    if response is None and isinstance(record.get("choices"), list):
        response = record
    call = _tags(record)
    if "messages" in asked or "input" in asked:
        given = asked["messages"] if "messages" in asked else messages_of(asked["input"])
        call["messages"] = [*_system(asked), *messages_of(given)] if isinstance(given, list) else given
        call["tools"] = asked.get("tools") or _more(asked).get("tools")
    elif "prompt" in asked:
        call["prompt"] = asked["prompt"]
    else:
        raise ConfigError(f"no call in the fields {_shown(sorted(record))}; {ACCEPTED}")
    if response is not None:
        return {**call, "response": response_of(response)}
    if "response" in record or record.get("error"):
        raise ConfigError("a call without an answer")
    return call


def _first(record: Record, *names: str) -> Any:
    return next((value for name in names if (value := record.get(name)) is not None), None)


def _more(asked: Record) -> Record:
    """Return the parameters that LiteLLM logs next to the messages."""
    more = _first(asked, "model_parameters", "optional_params")
    return more if isinstance(more, Mapping) else {}


def _system(asked: Record) -> list[Any]:
    """Return ``system`` (Anthropic) or ``instructions`` (Responses) as a message."""
    text = asked.get("system", asked.get("instructions"))
    return [] if not text else messages_of([{"role": "system", "content": text}])


def _of_batch(record: Record) -> Record:
    """Return a line of a batch: the request's line, with ``response`` or ``result`` of the output's line."""
    if "result" in record or "params" in record:
        return _of_anthropic_batch(record)
    answered = record.get("response")
    if record.get("error") or not isinstance(answered, Mapping) or answered.get("status_code", 200) != 200:
        raise ConfigError("a batch's line without an answer")
    if not isinstance(record.get("body"), Mapping):
        raise ConfigError(
            "a batch's output has no requests: add 'body' of the input's line with the same custom_id"
        )
    return _of_api({**_tags(record), "request": record["body"], "response": answered.get("body")})


def _of_anthropic_batch(record: Record) -> Record:
    result = record.get("result")
    if not isinstance(result, Mapping) or result.get("type") != "succeeded":
        raise ConfigError("a batch's line without an answer")
    if not isinstance(record.get("params"), Mapping):
        raise ConfigError(
            "a batch's results have no requests: add 'params' of the request with the same custom_id"
        )
    return _of_api({**_tags(record), "request": record["params"], "response": result.get("message")})


def _tags(record: Record) -> dict[str, Any]:
    return {name: record[name] for name in ("stage", "session", "task", "db") if name in record}


def _of_langfuse(record: Record) -> Record:
    kind = record.get("type", "GENERATION")
    if kind != "GENERATION":
        raise ConfigError(f"an observation of type {_shown(kind)} is no model call")
    given, output = _parsed(record.get("input")), _parsed(record.get("output"))
    if output is None:
        raise ConfigError("a generation without output")
    if isinstance(output, Mapping) and isinstance(output.get("completion"), str):
        output = output["completion"]
    is_body = isinstance(given, Mapping) and not given.keys().isdisjoint(("messages", "input", "prompt"))
    return _of_api(
        {
            "stage": record.get("name"),
            "session": _first(record, "sessionId", "session_id", "traceId", "trace_id"),
            "request": given if is_body else {"messages": messages_of(given)},
            "response": output if isinstance(output, str | Mapping) else {"content": output},
        }
    )


def _of_langsmith(record: Record) -> Record:
    """Return a run of LangSmith: of an API's client, or of LangChain's models."""
    if record["run_type"] != "llm":
        raise ConfigError(f"a run of type {_shown(record['run_type'])} is no model call")
    given, output = _parsed(record.get("inputs")), _parsed(record.get("outputs"))
    if not isinstance(given, Mapping) or not isinstance(output, Mapping) or record.get("error"):
        raise ConfigError("a run without inputs or outputs")
    messages, generations = given.get("messages"), output.get("generations")
    if isinstance(messages, list) and messages and isinstance(messages[0], list):  # of a batch of prompts
        messages = messages[0]
    while isinstance(generations, list) and generations:
        generations = generations[0]
    if isinstance(generations, Mapping):
        output = {"choices": [{"message": _first(generations, "message", "text")}]}
    if isinstance(choices := output.get("choices"), list):
        output = {
            "choices": [{**one, "message": _answer_of(one.get("message"))} for one in _objects(choices)]
        }
    return _of_api(
        {
            "stage": record.get("name"),
            "session": record.get("trace_id"),
            "request": given if messages is None else {**given, "messages": messages},
            "response": output,
        }
    )


def _answer_of(message: Any) -> Record:
    if isinstance(message, str):
        return {"role": "assistant", "content": message}
    return _joined(messages_of(message), is_cut=False)


def _spans(record: Record) -> Iterator[Record]:
    """Yield the spans and the log records of a line of OTLP's JSON."""
    for resource in _objects(_first(record, "resourceSpans", "resourceLogs")):
        for scope in _objects(_first(resource, "scopeSpans", "scopeLogs")):
            yield from _objects(_first(scope, "spans", "logRecords"))


def _of_span(span: Record) -> Iterator[Record]:
    """Yield the call of a span with OpenTelemetry's attributes, or with the numbered ones of others."""
    found = _found(span)
    messages = _parsed(found.get("gen_ai.input.messages"))
    answers = _parsed(found.get("gen_ai.output.messages"))
    if messages is None and answers is None:
        messages = _numbered(found, "gen_ai.prompt.") or _numbered(found, "llm.input_messages.")
        answers = _numbered(found, "gen_ai.completion.") or _numbered(found, "llm.output_messages.")
    if not answers:
        raise ConfigError("a span without gen_ai.output.messages is no model call")
    context = span.get("context")
    yield {
        "stage": found.get("gen_ai.agent.name") or span.get("name"),
        "session": _first(found, "gen_ai.conversation.id", "session.id")
        or span.get("traceId")
        or span.get("trace_id")
        or (context.get("trace_id") if isinstance(context, Mapping) else None),
        "messages": [
            *messages_of([{"role": "system", "content": text}] if (text := _instructions(found)) else []),
            *messages_of(messages or []),
        ],
        "tools": _parsed(found.get("gen_ai.tool.definitions")) or _numbered_tools(found),
        "response": {
            "choices": [
                {"message": one, "finish_reason": one.get("finish_reason")}
                for one in messages_of(answers)
                if isinstance(one, Mapping)
            ]
        },
    }


def _instructions(found: Record) -> Any:
    return _parsed(found.get("gen_ai.system_instructions"))


def _found(span: Record) -> dict[str, Any]:
    """Return the attributes of a span and of its events: either may have the messages."""
    found = {}
    for event in _objects(span.get("events")):
        found.update(_attributes(event.get("attributes")))
    return {**found, **_attributes(span.get("attributes"))}


def _numbered_tools(found: Record) -> list[Any]:
    """Return the schemas of tools that OpenLLMetry and OpenInference write, in the order of their numbers."""
    tools: dict[int, dict[str, Any]] = {}
    for name, value in found.items():
        if match := re.fullmatch(r"llm\.(?:request\.functions|tools)\.(\d+)\.(.+)", name):
            tools.setdefault(int(match[1]), {})[match[2]] = _parsed(value)
    return [tools[number].get("tool.json_schema", tools[number]) for number in sorted(tools)]


def _attributes(given: Any) -> dict[str, Any]:
    """Return attributes by name: an object, or OTLP's list of keys and typed values."""
    if isinstance(given, Mapping):
        return dict(given)
    return {str(one.get("key")): _value(one.get("value")) for one in _objects(given)}


def _value(typed: Any) -> Any:
    """Return the plain value of one that OTLP types, nested ones included."""
    if not isinstance(typed, Mapping) or len(typed) != 1:
        return typed
    ((kind, value),) = typed.items()
    if kind == "arrayValue" and isinstance(value, Mapping):
        return [_value(one) for one in value.get("values") or []]
    if kind == "kvlistValue" and isinstance(value, Mapping):
        return _attributes(value.get("values"))
    return value


def _numbered(found: Record, prefix: str) -> list[dict[str, Any]]:
    """Return messages of attributes like ``gen_ai.prompt.0.content`` and ``...0.tool_calls.0.name``."""
    messages: dict[int, dict[str, Any]] = {}
    for name, value in found.items():
        if not (match := re.fullmatch(re.escape(prefix) + r"(\d+)\.(.+)", name)):
            continue
        message = messages.setdefault(int(match[1]), {"role": "assistant", "calls": {}})
        called = re.fullmatch(r"(?:message\.)?tool_calls\.(\d+)\.(?:.+\.)?(name|arguments)", match[2])
        if called:
            message["calls"].setdefault(int(called[1]), {})[called[2]] = value
        else:
            message[match[2].removeprefix("message.")] = value
    for message in messages.values():
        calls = message.pop("calls")
        message["tool_calls"] = [{"function": calls[number]} for number in sorted(calls)]
    return [messages[number] for number in sorted(messages)]


# messages


def messages_of(given: Any) -> list[Any]:
    """Return messages of any API in the form of OpenAI's chat completions; a text is a user's message.

    Parts that are no text (images, thoughts) are left out. Other values are returned unchanged.
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
    one = _of_langchain(one)
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
    if isinstance(legacy := one.get("function_call"), Mapping) and not one.get("tool_calls"):
        one = {**one, "tool_calls": [{"function": legacy}]}
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


def _of_langchain(one: Record) -> Record:
    """Return a message of LangChain's, serialized in one of its three ways, as one of OpenAI's."""
    fields = one.get("kwargs") if one.get("type") == "constructor" else one.get("data")
    if isinstance(fields, Mapping):
        one = {"type": one.get("type"), **fields}
    kind = one.get("type")
    more = one.get("additional_kwargs")
    if isinstance(more, Mapping) and more.get("tool_calls") and not one.get("tool_calls"):
        one = {**one, "tool_calls": more["tool_calls"]}
    if "role" in one or kind not in (*ROLES, "system", "tool"):
        return one
    calls = [
        _called(call.get("name"), call.get("args")) if "args" in call else call
        for call in _objects(one.get("tool_calls"))
    ]
    return {"role": ROLES.get(kind, kind), "content": one.get("content"), "tool_calls": calls}


def _part(part: Record) -> str | None:
    """Return the text of a part; None if it is of another kind."""
    if part.get("type", "text") not in TEXT_PARTS:
        return None
    text = _first(part, "text", "content", "refusal")
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
        return {**response, "choices": [_choice(one) for one in response["choices"]]}
    if isinstance(response.get("body"), Mapping):  # an HTTP response
        return response_of(response["body"])
    if isinstance(response.get("message"), Mapping):  # Ollama
        return response["message"]
    if isinstance(response.get("content", response.get("parts")), list):  # Anthropic, OpenTelemetry
        return _joined(messages_of([response]), response.get("stop_reason") == "max_tokens")
    return response


def _choice(choice: Any) -> Any:
    """Return a choice with a message of text and tool calls, for a refusal, parts or a ``function_call``."""
    message = choice.get("message") if isinstance(choice, Mapping) else None
    if not isinstance(message, Mapping):
        return choice
    if message.get("content") is None and isinstance(message.get("refusal"), str):
        message = {**message, "content": message["refusal"]}
    return {**choice, "message": messages_of({"role": "assistant", **message})[0]}


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
    if isinstance(response, str) and response.lstrip().startswith(("data:", "event:")):
        return _streamed(response)
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


def _streamed(events: str) -> Record | str:
    """Return the message of a chat completion logged as server-sent events; other texts unchanged."""
    chunks = [_parsed(line[5:].strip()) for line in events.splitlines() if line.startswith("data:")]
    choices = [
        choice for chunk in chunks if isinstance(chunk, Mapping) for choice in _objects(chunk.get("choices"))
    ]
    if not choices:
        return events
    calls: dict[int, dict[str, str]] = {}
    texts = []
    for choice in choices:
        delta: Record = choice.get("delta") or {}
        texts.append(delta.get("content") or choice.get("text") or "")
        for part in _objects(delta.get("tool_calls")):
            call, function = calls.setdefault(part.get("index", 0), {}), part.get("function") or {}
            for name in ("name", "arguments"):
                call[name] = call.get(name, "") + (function.get(name) or "")
    return {
        "role": "assistant",
        "content": "".join(texts),
        "tool_calls": [{"function": calls[number]} for number in sorted(calls)],
        "finish_reason": next((one["finish_reason"] for one in choices if one.get("finish_reason")), None),
    }


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
