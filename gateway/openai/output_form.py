"""The form that a request wants for its output: a JSON schema, regex, choice or grammar."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from agentspec.errors import RequestError
from agentspec.gateway.openai.schemas import GenerationBody, ResponsesBody, SamplingBody
from agentspec.generation import WrittenConstraint

CHAT_FORMAT = "response_format"
RESPONSES_FORMAT = "text.format"


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
