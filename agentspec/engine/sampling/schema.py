"""JSON schemas as clients write them, in a form that the grammar library can enforce without harm.

Schemas come from pydantic, zod, OpenAPI documents and databases. Many of their keywords only describe, and
many can't be enforced token by token. Such keywords are dropped one by one, and the rest of the schema still
binds. The library itself ignores the keywords that it does not know (its option ``lenient``). A schema that
no output can obey, or that is too large to compile, is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from functools import lru_cache
from typing import Any
from urllib.parse import unquote

from llguidance import LLMatcher

from agentspec.errors import RequestError

MAX_NODES = 20_000
MAX_LEVELS = 8_000  # of nested schemas, references followed
MAX_PATTERN_CHARS = 4_096
MAX_NUMBER = 2**53  # beyond it, numbers in JSON are not exact, and the library builds no range
MIN_NUMBER = 1e-9
MAX_MULTIPLE = 10_000  # states of an automaton that counts up to it; without the decimal point
MAX_ROUNDS = 100
MAX_SHOWN_CHARS = 60
UNSUPPORTED_PATTERNS = ("look-around", "backreferences")

# keywords with schemas by name, and those with values, which are no schemas
BY_NAME = frozenset(
    ("$defs", "definitions", "dependentSchemas", "patternProperties", "properties", "schemas")
)
DATA = frozenset(("const", "default", "enum", "example", "examples", "required", "type"))
NULLABLE = frozenset(("const", "default", "example"))
KNOWN_DRAFTS = ("http://json-schema.org/draft", "https://json-schema.org/draft")

Schema = dict[str, Any]


class BadSchemaError(ValueError):
    """A schema that can't bind an output."""


@dataclass(frozen=True, slots=True)
class Enforceable:
    """A schema for the library.

    Attributes:
        text: the schema as JSON, without the keywords that can't be enforced.
        num_levels: bound of the nesting when every reference is followed once; the library recurses as deep.
    """

    text: str
    num_levels: int


def enforceable(schema: Mapping[str, Any], options: Mapping[str, Any] | None = None) -> Enforceable:
    """Return ``schema`` without what can't be enforced, with ``options`` of the library.

    Raises:
        BadSchemaError: no value can obey it, it is too large, or it is no JSON.
    """
    copied = _Copy()
    root = copied.of(dict(schema), 1)
    targets = {id(target): target for node in copied.nodes if (target := _target(root, node)) is not None}
    num_levels = copied.deepest * (1 + len(targets))
    if num_levels > MAX_LEVELS:
        raise BadSchemaError(
            f"it is nested too deeply: about {num_levels} levels, with {len(targets)} references"
        )
    if not _ends(root, copied.nodes):
        raise BadSchemaError("a reference leads back to itself, so that no value obeys it")
    try:
        text = json.dumps({**root, "x-guidance": {"lenient": True, **(options or {})}})
    except TypeError as error:
        raise BadSchemaError(str(error)) from None
    return Enforceable(text, num_levels)


@dataclass(slots=True)
class _Copy:
    """The copy of one schema, in progress."""

    nodes: list[Schema] = field(default_factory=list)
    deepest: int = 0

    def of(self, schema: Any, level: int) -> Any:
        if isinstance(schema, list):
            return [self.of(one, level) for one in schema]
        if not isinstance(schema, dict):
            return schema
        self.deepest = max(self.deepest, level)
        if len(self.nodes) == MAX_NODES:
            raise BadSchemaError(f"it has more than {MAX_NODES} parts")
        copy: Schema = {}
        self.nodes.append(copy)
        for name, value in schema.items():
            if name in KEPT and (value := KEPT[name](value)) is None:
                continue
            if value is None and name not in NULLABLE:
                continue
            copy[name] = self._value(name, value, level)
        return _repaired(copy, schema)

    def _value(self, name: str, value: Any, level: int) -> Any:
        if name in DATA:
            return value
        if isinstance(value, dict) and name in BY_NAME:
            return {key: self.of(one, level + 1) for key, one in value.items()}
        if isinstance(value, dict) and name == "components":  # of OpenAPI
            return {key: self._value(key, one, level) for key, one in value.items()}
        return self.of(value, level + 1) if isinstance(value, dict | list) else value


def _repaired(copy: Schema, given: Mapping[str, Any]) -> Schema:
    """Return the copy with what depends on more than one keyword."""
    for bound in ("minimum", "maximum"):
        name = f"exclusive{bound.capitalize()}"
        if given.get(name) is True and bound in copy:  # draft 4
            copy[name] = copy.pop(bound)
    if isinstance(copy.get("required"), bool):  # draft 3
        del copy["required"]
    patterns = copy.get("patternProperties")
    if isinstance(patterns, dict) and not all(map(_compiles, patterns)):
        copy["patternProperties"] = {name: one for name, one in patterns.items() if _compiles(name)}
        copy["additionalProperties"] = True
    return copy


def _number(value: Any) -> Any:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number and (value == 0 or MIN_NUMBER <= abs(value) <= MAX_NUMBER) else None


def _multiple(value: Any) -> Any:
    if _number(value) is None or value <= 0:
        return None
    digits = Decimal(repr(value)).normalize().as_tuple()
    scaled = int("".join(map(str, digits.digits))) * 10 ** max(0, int(digits.exponent))
    return value if scaled <= MAX_MULTIPLE else None


def _count(value: Any) -> Any:
    is_whole = isinstance(value, int | float) and not isinstance(value, bool) and value == int(value)
    return int(value) if is_whole and 0 <= value <= MAX_NUMBER else None


def _pattern(value: Any) -> Any:
    return value if isinstance(value, str) and _compiles(value) else None


@lru_cache(maxsize=1024)
def _compiles(pattern: str) -> bool:
    """True if the library can compile the pattern: it knows neither look-around nor back references.

    Raises:
        BadSchemaError: it is no regular expression.
    """
    if len(pattern) > MAX_PATTERN_CHARS:
        return False
    schema = json.dumps({"type": "string", "pattern": pattern})
    reason = LLMatcher.validate_grammar(LLMatcher.grammar_from_json_schema(schema))
    if reason and not any(known in reason for known in UNSUPPORTED_PATTERNS):
        try:
            re.compile(pattern)
        except (re.error, OverflowError, RecursionError) as error:
            raise BadSchemaError(f"{_shortened(pattern)} is no regular expression: {error}") from None
    return not reason


def _shortened(text: str) -> str:
    return repr(text if len(text) <= MAX_SHOWN_CHARS else f"{text[:MAX_SHOWN_CHARS]}...")


def _draft(value: Any) -> Any:
    return value if isinstance(value, str) and value.startswith(KNOWN_DRAFTS) else None


# keywords that are kept only with some values: a function returns the value to be enforced, or None for none
KEPT: Mapping[str, Callable[[Any], Any]] = {
    "$schema": _draft,
    "exclusiveMaximum": _number,
    "exclusiveMinimum": _number,
    "format": lambda value: value if isinstance(value, str) else None,
    "maxItems": _count,
    "maxLength": _count,
    "maxProperties": _count,
    "maximum": _number,
    "minItems": _count,
    "minLength": _count,
    "minProperties": _count,
    "minimum": _number,
    "multipleOf": _multiple,
    "pattern": _pattern,
    "type": lambda value: None if value == "any" else value,
    "x-guidance": lambda value: None,  # the library's own options
}


def _target(root: Any, node: Schema) -> Any:
    """Return the part of the schema that the node refers to; None without a reference within the schema."""
    reference = node.get("$ref")
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    found = root
    for part in unquote(reference[1:]).split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list) and name.isdecimal() and int(name) < len(found):
            found = found[int(name)]
        else:
            found = found.get(name) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else None


def _ends(root: Any, nodes: list[Schema]) -> bool:
    """True if every node is more than references that lead to each other without end."""
    ending: set[int] = set()
    for _ in range(MAX_ROUNDS):
        left = [node for node in reversed(nodes) if id(node) not in ending]
        before = len(ending)
        for node in left:
            if all(any(id(one) in ending for one in choice) for choice in _choices(root, node)):
                ending.add(id(node))
        if len(ending) == before:
            break
    return len(ending) == len(nodes)


def _choices(root: Any, node: Schema) -> Iterator[list[Schema]]:
    """Yield groups of schemas. A value of the node obeys at least one of each group."""
    if (target := _target(root, node)) is not None:
        yield [target]
    for one in _schemas(node.get("allOf")):
        yield [one]
    for name in ("anyOf", "oneOf"):
        if isinstance(node.get(name), list) and all(isinstance(one, dict) for one in node[name]):
            yield node[name]


def _schemas(value: Any) -> list[Schema]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def bad_schema(reason: str, param: str, subject: str = "") -> RequestError:
    """Return the error for the schema of ``subject`` in the request's field ``param``."""
    of_subject = f" of {subject}" if subject else ""
    return RequestError(
        f"{param}: the JSON schema{of_subject} can't be used: {reason!r}",
        param=param,
        code="invalid_json_schema",
    )
