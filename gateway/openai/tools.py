"""Constraints on a request's output: a JSON schema, regex, choice or grammar, and calls of its tools."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentspec.errors import RequestError
from agentspec.gateway.openai.call_reader import CLOSE, OPEN
from agentspec.gateway.openai.messages import LeftOut
from agentspec.gateway.openai.schemas import GenerationBody, ResponsesBody, SamplingBody
from agentspec.generation import WrittenConstraint

CHAT_FORMAT = "response_format"
RESPONSES_FORMAT = "text.format"
ANY_ARGUMENTS = {"type": "object"}
# without fixed white space, a model that is forced to call may generate white space without end
WRITTEN = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
# each tag is a rule of its own: for some models it is one token
TAGS = f"open_tag: {json.dumps(OPEN)}\nclose_tag: {json.dumps(CLOSE)}"


@dataclass(frozen=True, slots=True)
class OutputForm:
    """A form for the output, and the field that asks for it.

    Attributes:
        json_schema: the schema; ``{}`` = any JSON object.
    """

    param: str = CHAT_FORMAT
    json_schema: Mapping[str, Any] | None = None
    written: WrittenConstraint | None = None

    @property
    def binds(self) -> bool:
        """False if any text will do."""
        return self.json_schema is not None or self.written is not None


ANY_FORM = OutputForm()


def read_form(body: SamplingBody) -> OutputForm:
    """Return the form that the body asks for. Raises RequestError if several are, or one is malformed."""
    forms = list(_forms(body))
    if len(forms) > 1:
        raise RequestError(
            f"{forms[0].param} and {forms[1].param} each ask for a form of the output: send one of them",
            param=forms[1].param,
        )
    return forms[0] if forms else ANY_FORM


def _forms(body: SamplingBody) -> Iterator[OutputForm]:
    own = _response_format(body) if isinstance(body, GenerationBody) else _text_format(body)
    if own is not None:
        yield own
    wanted = body.structured_outputs
    if wanted is not None:
        if not wanted.has_form:
            raise RequestError(
                "structured_outputs needs one of json, regex, choice, grammar and json_object",
                param="structured_outputs",
            )
        members = {
            "json": wanted.json_,
            "regex": wanted.regex,
            "choice": wanted.choice,
            "grammar": wanted.grammar,
            "json_object": wanted.json_object or None,
        }
        for name, value in members.items():
            yield from _form(f"structured_outputs.{name}", name, value)
    yield from _form("guided_json", "json", body.guided_json)
    yield from _form("guided_regex", "regex", body.guided_regex)
    yield from _form("guided_choice", "choice", body.guided_choice)
    yield from _form("guided_grammar", "grammar", body.guided_grammar)
    yield from _form("grammar", "grammar", body.grammar)
    yield from _form("json_schema", "json", body.json_schema)


def _form(param: str, kind: str, value: Any) -> Iterator[OutputForm]:
    if value is None or value == "":
        return
    if kind == "json_object":
        yield OutputForm(param, {})
    elif kind == "json":
        yield OutputForm(param, _schema(param, value))
    elif kind == "choice":
        yield OutputForm(param, written=WrittenConstraint("choice", json.dumps([*dict.fromkeys(value)])))
    else:
        yield OutputForm(param, written=WrittenConstraint("regex" if kind == "regex" else "grammar", value))


def _schema(param: str, given: Any) -> Mapping[str, Any]:
    """Return a JSON schema that is an object, or the text of one."""
    schema = given
    if isinstance(given, str):
        try:
            schema = json.loads(given)
        except (ValueError, RecursionError):
            schema = None
    if not isinstance(schema, dict):
        raise RequestError(f"{param} must be a JSON schema, an object, not {str(given)[:80]!r}", param=param)
    return schema


def _response_format(body: GenerationBody) -> OutputForm | None:
    wanted = body.response_format
    if wanted is None:
        return None
    schema = wanted.schema_ if wanted.json_schema is None else wanted.json_schema.schema_
    return _json_form(wanted.type, schema, CHAT_FORMAT, "json_schema")


def _text_format(body: SamplingBody) -> OutputForm | None:
    wanted = body.text.format if isinstance(body, ResponsesBody) and body.text is not None else None
    return None if wanted is None else _json_form(wanted.type, wanted.schema_, RESPONSES_FORMAT, "schema")


def _json_form(
    kind: str, schema: Mapping[str, Any] | None, param: str, schema_name: str
) -> OutputForm | None:
    """Return the form of a ``response_format``. Errors name the fields ``param`` and ``schema_name``."""
    if kind == "text":
        return None
    if kind == "json_object":
        return OutputForm(param, schema or {})  # a schema here is llama.cpp's form
    if kind != "json_schema":
        raise RequestError(
            f"{param}.type must be 'text', 'json_object' or 'json_schema', not {kind!r}",
            param=f"{param}.type",
        )
    if schema is None:
        raise RequestError(f"{param}.{schema_name} is missing", param=f"{param}.{schema_name}")
    return OutputForm(param, schema)


Tools = Sequence[Mapping[str, Any]]
Function = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ChosenTools:
    """The tools of a request after ``tool_choice``.

    Attributes:
        tools: tools for the prompt, in the format of chat.
        form: form of an output that is no call.
        grammar: Lark grammar of calls; None = unconstrained. With a form, the output may be either.
    """

    tools: Tools | None = None
    form: OutputForm = ANY_FORM
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


def choose(
    tools: Tools | None,
    choice: object,
    form: OutputForm = ANY_FORM,
    parallel_calls: bool | None = None,
) -> ChosenTools:
    """Apply ``tool_choice``: none, auto, required, or a function by its name. Raises RequestError.

    ``form``: of an answer without calls. ``parallel_calls``: False = at most one call.
    """
    given = [function for tool in tools or () if isinstance(function := tool.get("function"), dict)]
    functions = [function for function in given if isinstance(function.get("name"), str)]
    if choice in (None, "auto"):
        grammar = _free_calls(functions, parallel_calls is not False) if functions and form.binds else None
        return ChosenTools(tools, form, grammar)
    if choice == "none":
        return ChosenTools(None, form)
    name = _forced_name(choice)
    forced = [function for function in functions if name in (None, function["name"])]
    if not forced:
        wanted = "a tool" if name is None else f"the tool {name!r}"
        raise RequestError(f"tool_choice asks for {wanted}, but tools has none", param="tool_choice")
    if form.written is not None:
        raise RequestError(f"tool_choice forces a call, and {form.param} another output", param=form.param)
    return ChosenTools(tools, grammar=_forced_call(forced))


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


def _forced_call(functions: Sequence[Function]) -> str:
    """Return a grammar of one call of one of ``functions``, which obeys the function's schema."""
    return _grammar("start: call", functions)


def _free_calls(functions: Sequence[Function], are_many: bool) -> str:
    """Return a grammar of one or more calls, each of which obeys its function's schema."""
    return _grammar('start: call ("\\n" call)*' if are_many else "start: call", functions)


def _grammar(start: str, functions: Sequence[Function]) -> str:
    """Return a grammar with the rule ``call``. Each schema resolves its own references."""
    calls, rules, after = [], [], json.dumps("}\n")
    for index, function in enumerate(functions):
        before = f'\n{{"name": {json.dumps(function["name"])}, "arguments": '
        calls.append(f"open_tag {json.dumps(before)} arguments_{index} {after} close_tag")
        subject = f"the tool {function['name']!r}"
        schema = {**_parameters(function), "x-guidance": WRITTEN, "$comment": subject}
        rules.append(f"arguments_{index}: %json {json.dumps(schema)}")
    return "\n".join([start, f"call: {' | '.join(calls)}", TAGS, *rules])


def _parameters(function: Function) -> Mapping[str, Any]:
    """Return the schema of the arguments, which are an object even if the schema does not say so."""
    parameters = function.get("parameters") or ANY_ARGUMENTS
    if not isinstance(parameters, dict):
        raise RequestError(
            f"the parameters of the tool {function['name']!r} must be an object", param="tools"
        )
    kind = parameters.get("type") or "object"
    if "object" not in (kind if isinstance(kind, list) else [kind]):
        raise RequestError(
            f"tools: the JSON schema of the tool {function['name']!r} can't be used: arguments are of type"
            f" 'object', not {kind!r}",
            param="tools",
        )
    return {**parameters, "type": "object"}
