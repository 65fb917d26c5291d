"""A model's chat template: OpenAI messages to the text it was trained on. Knows no tokens.

The environment offers what Hugging Face's does (their documentation on writing chat templates):
``raise_exception``, ``strftime_now``, a ``tojson`` that escapes no HTML, loop controls and the
``generation`` tag.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import meta, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from agentspec.errors import CheckpointError, RequestError
from agentspec.generation import DEFAULT_OPTIONS, THINK_CLOSE, PromptOptions

Message = Mapping[str, Any]
END_MARK = "\ue000end of the last message\ue000"  # with private characters, which no prompt has

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


# what a template may raise by its own choice, or because a message lacks what it reads
TEMPLATE_ERRORS = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


class ChatTemplate:
    """One compiled template.

    Attributes:
        knows_tools: it shows calls of tools.
        shows_tools: it reads the list of tools.
        knows_thinking: it speaks of the end of the model's reasoning.

    Args:
        source: Jinja.
        special_tokens: variables such as ``bos_token`` and ``eos_token``.

    Raises:
        CheckpointError: the source is no valid Jinja.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        self._special_tokens = dict(special_tokens)
        self.knows_tools = "tool_calls" in source
        self.knows_thinking = THINK_CLOSE in source
        environment = _environment()
        try:
            self._template = environment.from_string(source)
            self.shows_tools = "tools" in meta.find_undeclared_variables(environment.parse(source))
        except jinja2.TemplateError as error:
            raise CheckpointError(f"the chat template does not compile: {error}") from error

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        options: PromptOptions = DEFAULT_OPTIONS,
    ) -> str:
        """The prompt's text. ``options.variables`` take precedence over special tokens.

        A history that the template refuses is shown in its plainest form, see :func:`plain_messages`.

        Raises:
            RequestError: a message is malformed, or the template refuses the messages in both forms.
        """
        normalized = normalized_messages(messages)
        if options.continue_final_message:
            return self._open(normalized, tools, options)
        return self._render(normalized, tools, options)

    def _open(
        self,
        messages: list[dict[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        options: PromptOptions,
    ) -> str:
        """Return the text up to the end of the last message's content.

        As in Transformers: it is cut at a mark, and white space before it goes if the template strips it.
        """
        last = {**messages[-1], "content": f"{messages[-1]['content'] or ''}{END_MARK} "}
        text, mark, rest = self._render([*messages[:-1], last], tools, options).rpartition(END_MARK)
        if not mark:
            raise RequestError(
                "continue_final_message: the model's chat template does not show the last message",
                param="continue_final_message",
            )
        return text if rest.startswith(" ") else text.rstrip()

    def _render(
        self,
        messages: list[dict[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        options: PromptOptions,
    ) -> str:
        try:
            return self._rendered(messages, tools, options)
        except TEMPLATE_ERRORS as error:
            plain = plain_messages(messages)
            if plain != messages:
                try:
                    return self._rendered(plain, tools, options)
                except TEMPLATE_ERRORS:
                    pass  # the first error speaks of the messages as they were sent
            message = f"the model's chat template refuses these messages: {error}"
            raise RequestError(message, param="messages") from error

    def _rendered(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None, options: PromptOptions
    ) -> str:
        return self._template.render(
            **{"documents": None, **self._special_tokens, **options.variables},
            messages=messages,
            tools=[dict(tool) for tool in tools] if tools else None,
            add_generation_prompt=options.add_generation_prompt,
        )


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
        function["arguments"] = _parsed(function["arguments"])
    return {**call, "function": function}


def _parsed(arguments: str) -> object:
    """Return the value of JSON text, as loosely as models write it; other text, which can still be shown."""
    try:
        return json.loads(arguments, strict=False) if arguments.strip() else {}
    except (ValueError, RecursionError):
        return arguments


def plain_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return a history in a form that strict templates accept.

    All system messages are one at the beginning. Adjacent messages of a user are one, and those of an
    assistant without calls. Arguments of a call that are no object become the only member of one.
    """
    system = [message["content"] for message in messages if message["role"] == "system"]
    plain: list[dict[str, Any]] = [{"role": "system", "content": _joined(system)}] if system else []
    for message in messages:
        if message["role"] == "system":
            continue
        if plain and _are_one_turn(plain[-1], message):
            plain[-1] |= {"content": _joined([plain[-1]["content"], message["content"]])}
        else:
            plain.append(_with_objects(message))
    return plain


def _joined(texts: Sequence[str | None]) -> str:
    return "\n\n".join(text for text in texts if text)


def _are_one_turn(one: Message, other: Message) -> bool:
    is_only_text = not one.get("tool_calls") and not other.get("tool_calls")
    return is_only_text and one["role"] == other["role"] and one["role"] in ("user", "assistant")


def _with_objects(message: Message) -> dict[str, Any]:
    calls = [
        {**call, "function": {**call["function"], "arguments": {"arguments": call["function"]["arguments"]}}}
        if not isinstance(call["function"].get("arguments", {}), Mapping)
        else call
        for call in message.get("tool_calls") or ()
    ]
    return {**message, "tool_calls": calls} if calls else dict(message)


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
