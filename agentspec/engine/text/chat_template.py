"""A model's chat template: OpenAI messages to the text it was trained on. Knows no tokens.

The environment offers what Hugging Face's does (their documentation on writing chat templates):
``raise_exception``, ``strftime_now``, a ``tojson`` that escapes no HTML, loop controls and the
``generation`` tag.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from agentspec.errors import CheckpointError, RequestError

Message = Mapping[str, Any]

# for models that were not trained on tools: the functions and the calls, in the form of Hermes and Qwen
TOOLS_TEMPLATE = """\
{% if tools %}
<|tools|>
{% for tool in tools %}
{{ tool | tojson }}
{% endfor %}
{% endif %}
{% for message in messages %}
<|{{ message.role }}|>
{% if message.content %}
{{ message.content }}
{% endif %}
{% for call in message.tool_calls or [] %}
<tool_call>
{"name": {{ call.function.name | tojson }}, "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{% endfor %}
{% endfor %}
{% if add_generation_prompt %}
<|assistant|>
{% endif %}
"""


class ChatTemplate:
    """One compiled template.

    Attributes:
        knows_tools: it shows calls of tools.

    Args:
        source: Jinja.
        special_tokens: variables such as ``bos_token`` and ``eos_token``.

    Raises:
        CheckpointError: the source is no valid Jinja.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        self._special_tokens = dict(special_tokens)
        self.knows_tools = "tool_calls" in source
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateError as error:
            raise CheckpointError(f"the chat template does not compile: {error}") from error

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
    ) -> str:
        """The prompt's text.

        Raises:
            RequestError: a message is malformed, or the template refuses the messages.
        """
        normalized = normalized_messages(messages)
        try:
            return self._template.render(
                messages=normalized,
                tools=[dict(tool) for tool in tools] if tools else None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **self._special_tokens,
            )
        except (jinja2.TemplateError, TypeError, ValueError, KeyError, AttributeError) as error:
            message = f"the model's chat template refuses these messages: {error}"
            raise RequestError(message, param="messages") from error


def normalized_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return the messages as templates expect them: text content as one string, tool arguments as objects.

    Raises:
        RequestError: the list is empty, or a message has no role or content that is not text.
    """
    if not messages:
        raise RequestError("messages must not be empty", param="messages")
    return [_normalized(message) for message in messages]


def _normalized(message: object) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise RequestError(f"a message must be an object, not {message!r}", param="messages")
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise RequestError(f"a message needs a role, not {role!r}", param="messages")
    normalized = dict(message)
    normalized["content"] = _text(message.get("content"))
    if message.get("tool_calls"):
        normalized["tool_calls"] = [_tool_call(call) for call in message["tool_calls"]]
    return normalized


def _text(content: object) -> str | None:
    """String content, the joined text parts of list content, or None (a mere tool call)."""
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise RequestError(f"content must be a string or a list of parts, not {content!r}", param="messages")
    texts = []
    for part in content:
        if (
            not isinstance(part, Mapping)
            or part.get("type") != "text"
            or not isinstance(part.get("text"), str)
        ):
            kind = part.get("type") if isinstance(part, Mapping) else part
            raise RequestError(f"only text content parts are supported, not {kind!r}", param="messages")
        texts.append(part["text"])
    return "\n".join(texts)  # as vLLM joins them


def _tool_call(call: object) -> object:
    """OpenAI sends a call's arguments as JSON text; templates write them with ``tojson``."""
    if not isinstance(call, Mapping) or not isinstance(call.get("function"), Mapping):
        raise RequestError(f"a tool call needs a function, not {call!r}", param="messages")
    function = dict(call["function"])
    if isinstance(function.get("arguments"), str):
        with contextlib.suppress(ValueError, RecursionError):  # a template can still show it as text
            function["arguments"] = json.loads(function["arguments"])
    return {**call, "function": function}


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(format_: str) -> str:
    return datetime.now().strftime(format_)


class _GenerationTag(Extension):
    """``{% generation %}`` marks what the assistant wrote, for training; here it changes nothing."""

    tags = {"generation"}  # noqa: RUF012  (jinja2 declares it so)

    def parse(self, parser: Parser) -> nodes.Node:
        """Return the body without its wrapper."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)
