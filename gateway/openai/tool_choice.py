"""``tool_choice``: the tools that the model is told of, and the grammar of a call that is forced."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentspec.errors import RequestError
from agentspec.gateway.openai.tool_calls import CLOSE, OPEN

Tools = Sequence[Mapping[str, Any]]
ANY_ARGUMENTS = {"type": "object"}
# a model that would rather write something else may put in white space for ever, wherever some is allowed
WRITTEN = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


@dataclass(frozen=True, slots=True)
class ChosenTools:
    """What a request's tools come to.

    Attributes:
        tools: as chat has them; those that the model is told of.
        grammar: Lark, of an output that is one call of one of them; None = the model is free.
    """

    tools: Tools | None = None
    grammar: str | None = None


def choose(tools: Tools | None, choice: object) -> ChosenTools:
    """By ``tool_choice``: none, auto, required, or one function by its name. Raises RequestError."""
    if choice in (None, "auto"):
        return ChosenTools(tools)
    if choice == "none":
        return ChosenTools()
    name = _forced_name(choice)
    functions = [function for tool in tools or () if isinstance(function := tool.get("function"), dict)]
    named = [function for function in functions if isinstance(function.get("name"), str)]
    forced = [function for function in named if name in (None, function["name"])]
    if not forced:
        wanted = "a tool" if name is None else f"the tool {name!r}"
        raise RequestError(f"tool_choice asks for {wanted}, but tools has none", param="tool_choice")
    return ChosenTools(tools, _call_grammar(forced))


def _forced_name(choice: object) -> str | None:
    """The function that has to be called, as chat or the responses API names it; None = any."""
    if choice == "required":
        return None
    if isinstance(choice, dict) and choice.get("type") == "function":
        function = choice.get("function", choice)
        name = function.get("name") if isinstance(function, dict) else None
        if isinstance(name, str):
            return name
    raise RequestError(
        f"tool_choice must be 'auto', 'none', 'required' or a function by its name, not {choice!r}",
        param="tool_choice",
    )


def _call_grammar(functions: Sequence[Mapping[str, Any]]) -> str:
    """A grammar of one call in the form of ``tool_calls``; each schema has references of its own."""
    calls, schemas, after = [], [], json.dumps(f"}}\n{CLOSE}")
    for index, function in enumerate(functions):
        before = f'{OPEN}\n{{"name": {json.dumps(function["name"])}, "arguments": '
        calls.append(f"{json.dumps(before)} arguments_{index} {after}")
        schema = {**_parameters(function), "x-guidance": WRITTEN}
        schemas.append(f"arguments_{index}: %json {json.dumps(schema)}")
    return "\n".join([f"start: {' | '.join(calls)}", *schemas])


def _parameters(function: Mapping[str, Any]) -> Mapping[str, Any]:
    parameters = function.get("parameters") or ANY_ARGUMENTS
    if not isinstance(parameters, dict):
        raise RequestError(
            f"the parameters of the tool {function['name']!r} must be an object", param="tools"
        )
    return parameters
