"""Reading of chat messages as agents keep them in histories: with nulls, old forms and parts of other APIs.

A message that is refused once is refused for good, because the agent sends it again with every later turn. So
whatever an API answers is accepted as input. Templates know roles, text and calls of functions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agentspec.errors import RequestError
from agentspec.gateway.openai.content import LeftOut, json_text, read_content, read_output

Message = dict[str, Any]

ROLES = {"developer": "system", "function": "tool"}  # names of roles that templates do not know
# members that are read into the text or the calls of the message
READ_MEMBERS = frozenset(("audio", "content", "function_call", "refusal", "role", "tool_calls"))


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
