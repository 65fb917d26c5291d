"""Tool calls: parsing from generated text, and the grammar that ``tool_choice`` requires."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentspec.errors import RequestError
from agentspec.gateway.openai.left_out import LeftOut
from agentspec.generation import GenerationRequest

OPEN = "<tool_call>"
CLOSE = "</tool_call>"
ANY_ARGUMENTS = {"type": "object"}
# without fixed white space, a model that is forced to call may generate white space without end
WRITTEN = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}

Tools = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One tool call. ``arguments`` is a JSON string, as with OpenAI."""

    name: str
    arguments: str
    call_id: str = field(default_factory=lambda: f"call_{uuid.uuid4().hex}")

    def chat_form(self) -> dict[str, Any]:
        """Return the call as an element of ``tool_calls`` in chat."""
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.call_id, "type": "function", "function": function}


Piece = str | ToolCall


class ToolCallReader:
    """An incremental parser that separates the text and the tool calls of one output.

    White space before a call belongs to the call. Without a call, the texts join to the text that was pushed.
    """

    def __init__(self) -> None:
        self._held = ""
        self._num_searched = 0  # number of held characters in which no call ends
        self.num_calls = 0

    def push(self, text: str) -> list[Piece]:
        """Add text and return the pieces that are certain now: text outside calls, and complete calls."""
        self._held += text
        pieces: list[Piece] = []
        while piece := self._next():
            pieces.append(piece)
        return pieces

    def flush(self) -> list[Piece]:
        """Return the rest at the end: an unclosed call, or else text."""
        rest, self._held = self._held, ""
        _, opened, inside = rest.partition(OPEN)
        if opened and (call := _parsed(inside)) is not None:
            self.num_calls += 1
            return [call]
        return [rest] if rest and not (self.num_calls and rest.isspace()) else []

    def _next(self) -> Piece | None:
        """Cut the next piece off the held text; None if more text is needed first."""
        start = _opening(self._held)
        if text := self._cut(len(self._held[:start].rstrip())):
            return text
        while (end := self._held.find(CLOSE, max(start, self._num_searched))) >= 0:
            inside = self._held[start + len(OPEN) : end]
            call = _parsed(inside)
            if call is not None:
                self._cut(end + len(CLOSE))
                self.num_calls += 1
                return call
            if not _ends_in_string(inside):
                return self._cut(self._held.find(CLOSE, start) + len(CLOSE))
            self._num_searched = end + len(CLOSE)
        return None

    def _cut(self, num_chars: int) -> str:
        piece, self._held = self._held[:num_chars], self._held[num_chars:]
        if piece:
            self._num_searched = 0
        return piece


def may_call(request: GenerationRequest) -> bool:
    """True if the answer may contain tool calls."""
    sampling = request.sampling
    return bool(request.tools) and (sampling.json_schema is None or sampling.grammar is not None)


def _parsed(text: str) -> ToolCall | None:
    try:
        call = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return None
    arguments = call.get("arguments", {})
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return ToolCall(call["name"], arguments)


def _ends_in_string(text: str) -> bool:
    """True for JSON cut off inside a string: the closing tag is then part of the string."""
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        return error.msg.startswith("Unterminated string")
    except (ValueError, RecursionError):
        pass
    return False


def _opening(text: str) -> int:
    """Return the position where a call begins, or may begin at the very end; else the length."""
    if (start := text.find(OPEN)) >= 0:
        return start
    starts = (len(text) - num for num in range(len(OPEN) - 1, 0, -1) if text.endswith(OPEN[:num]))
    return next(starts, len(text))


@dataclass(frozen=True, slots=True)
class ChosenTools:
    """The tools of a request after ``tool_choice``.

    Attributes:
        tools: tools for the prompt, in the format of chat.
        grammar: Lark grammar of an output that is one call; None = unconstrained output.
    """

    tools: Tools | None = None
    grammar: str | None = None


def read_tools(tools: Tools | None, left_out: LeftOut | None = None) -> list[dict[str, Any]] | None:
    """Return the functions in the format of chat; None without any. Tools of other kinds are left out.

    Raises:
        RequestError: a tool has no kind, or a function no name.
    """
    names, functions = left_out or LeftOut(), []
    for index, tool in enumerate(tools or ()):
        kind, param = tool.get("type"), f"tools[{index}]"
        if kind == "function":
            functions.append(_function(tool, param))
        elif isinstance(kind, str) and kind:
            names.add("tools", kind)
        else:
            raise RequestError(f"{param}.type must be a string, not {kind!r}", param=f"{param}.type")
    return functions or None


def _function(tool: Mapping[str, Any], param: str) -> dict[str, Any]:
    """Return a function in the format of chat, given in that format or in the flat one of responses."""
    if "function" in tool:
        param, function = f"{param}.function", tool["function"]
    else:
        function = {name: value for name, value in tool.items() if name != "type" and value is not None}
        tool = {"type": "function", "function": function}
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str) or not name:
        raise RequestError(f"{param}.name must be a string, not {name!r}", param=f"{param}.name")
    return dict(tool)


def choose(tools: Tools | None, choice: object) -> ChosenTools:
    """Apply ``tool_choice``: none, auto, required, or a function by its name. Raises RequestError."""
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
    """Return the name of the function to be called, in the form of chat or of responses; None = any."""
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
    """Return a grammar of one call of one of ``functions``. Each schema resolves its own references."""
    calls, schemas, after = [], [], json.dumps(f"}}\n{CLOSE}")
    for index, function in enumerate(functions):
        before = f'{OPEN}\n{{"name": {json.dumps(function["name"])}, "arguments": '
        calls.append(f"{json.dumps(before)} arguments_{index} {after}")
        subject = f"the tool {function['name']!r}"
        schema = {**_parameters(function), "x-guidance": WRITTEN, "$comment": subject}
        schemas.append(f"arguments_{index}: %json {json.dumps(schema)}")
    return "\n".join([f"start: {' | '.join(calls)}", *schemas])


def _parameters(function: Mapping[str, Any]) -> Mapping[str, Any]:
    parameters = function.get("parameters") or ANY_ARGUMENTS
    if not isinstance(parameters, dict):
        raise RequestError(
            f"the parameters of the tool {function['name']!r} must be an object", param="tools"
        )
    return parameters
