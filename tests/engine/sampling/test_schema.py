# ruff: noqa: E501  (one row per line)
"""Schemas as clients write them: what can't be enforced is dropped, and nothing ends or holds up the engine."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from agentspec.engine.sampling.grammar import Grammar, GrammarCompiler
from agentspec.engine.text.tokenizer import Tokenizer
from agentspec.errors import RequestError
from tests.support.checkpoints import VOCAB_SIZE
from tests.support.fakes import make_draft


@pytest.fixture(scope="module")
def compiler(tokenizer: Tokenizer) -> GrammarCompiler:
    return GrammarCompiler(tokenizer.raw.to_str(), VOCAB_SIZE, tokenizer.eos_ids)


def holding(schema: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": schema}, "required": ["a"], "additionalProperties": False}


def text(**keywords: Any) -> dict[str, Any]:
    return holding({"type": "string", **keywords})


def number(**keywords: Any) -> dict[str, Any]:
    return holding({"type": "number", **keywords})


def integer(**keywords: Any) -> dict[str, Any]:
    return holding({"type": "integer", **keywords})


def takes(grammar: Grammar, tokenizer: Tokenizer, output: Any) -> bool:
    """True if the grammar allows the whole output and its end."""
    tokens = [int(token) for token in tokenizer.encode(json.dumps(output))]
    masks = grammar.masks(make_draft(tokens))
    is_allowed = all(mask[token] for mask, token in zip(masks, tokens, strict=False))
    return is_allowed and bool(masks[-1][sorted(tokenizer.eos_ids)].any())


DECIMAL = r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$"  # pydantic's
INT64 = 2**63

# a schema, what it allows, and what it still forbids
DEGRADED: dict[str, tuple[dict[str, Any], Any, Any]] = {
    **{
        f"format {name}": (text(format=name), "x", 5)
        for name in ("uuid4", "path", "password", "byte", "binary", "uri-reference", "regex", "json-pointer", "color", "")
    },
    "a format that binds": (text(format="date"), "2026-01-02", "x"),
    "a format of another type": (integer(format="int64"), 5, "x"),
    "a format that is no text": (text(format=5), "x", 5),
    "a format and a pattern": (text(format="uuid4", pattern="^a+$"), "aa", "b"),
    "decimal": (holding({"anyOf": [{"type": "number"}, text(pattern=DECIMAL)["properties"]["a"]]}), "1.5", None),
    "look-ahead": (text(pattern="^(?=a)"), "b", 5),
    "look-behind": (text(pattern="(?<=a*)b"), "x", 5),
    "a back reference": (text(pattern=r"^(a)\1$"), "b", 5),
    "a long pattern": (text(pattern="a" * 5_000), "b", 5),
    "unique items": (holding({"type": "array", "uniqueItems": True, "items": {"type": "integer"}}), [1, 1], ["x"]),
    "contains": (holding({"type": "array", "contains": {"type": "string"}}), [1], 5),
    "not": (holding({"type": "string", "not": {"const": "x"}}), "x", 5),
    "if": (holding({"type": "string", "if": {"const": "x"}, "then": {"minLength": 9}}), "x", 5),
    "one of": (holding({"oneOf": [{"type": "integer"}, {"type": "number"}]}), 5, "x"),
    "a discriminator": (holding({"oneOf": [{"const": "x"}], "discriminator": {"propertyName": "k"}}), "x", "y"),
    "property names": (holding({"type": "object", "propertyNames": {"pattern": "^a"}}), {"b": 1}, 5),
    "int64": (integer(minimum=-INT64, maximum=INT64 - 1), 5, "x"),
    "uint64": (integer(minimum=0, maximum=2 * INT64 - 1), 5, -5),
    "a double": (number(minimum=-1.7976931348623157e308, maximum=1.7976931348623157e308), 0.5, "x"),
    "a tiny minimum": (number(minimum=5e-324), 0.5, "x"),
    "bounds of another type": (integer(minimum="0", maximum=None), 5, "x"),
    "bounds that bind": (integer(minimum=3, maximum=7), 5, 8),
    "an exclusive bound of draft 4": (integer(minimum=3, exclusiveMinimum=True), 4, 3),
    "an exclusive bound that is off": (integer(minimum=3, exclusiveMinimum=False), 3, 2),
    "a multiple that binds": (integer(multipleOf=5), 15, 16),
    "a large multiple": (integer(multipleOf=999_983), 5, "x"),
    "a multiple of many digits": (number(multipleOf=0.123456789), 5, "x"),
    "a multiple of 0": (integer(multipleOf=0), 5, "x"),
    "lengths that are floats": (text(minLength=2.0, maxLength=3.0), "xx", "x"),
    "a negative length": (text(minLength=-1), "x", 5),
    "nulls": (text(pattern=None, format=None, minLength=None, enum=None, title=None, anyOf=None), "x", 5),
    "annotations": (text(title=5, description=[], examples="x", default=1e308, deprecated="no", readOnly=7), "x", 5),
    "required in a property": (text(required=True), "x", 5),
    "any type": (holding({"type": "any"}), "x", ...),
    "patterns of properties": (
        holding({"type": "object", "patternProperties": {"(?=a)": {"type": "string"}}, "additionalProperties": False}),
        {"a": "x"}, 5,
    ),
    "an unknown draft": ({**text(), "$schema": "urn:mine"}, "x", 5),
    "a known draft": ({**text(), "$schema": "http://json-schema.org/draft-07/schema#", "$id": "https://x.test/y"}, "x", 5),
    "options of the library": ({**text(), "x-guidance": {"whitespace_pattern": "("}}, "x", 5),
    "names of keywords": ({**holding({"type": "object", "properties": {"pattern": {"type": "integer"}, "format": {"type": "integer"}, "type": {"type": "integer"}}}), "title": "x"}, {"pattern": 5, "format": 5}, {"pattern": "x"}),
    "a tree": ({**holding({"$ref": "#/$defs/t"}), "$defs": {"t": {"type": "object", "properties": {"k": {"type": "array", "items": {"$ref": "#/$defs/t"}}}}}}, {"k": [{"k": []}]}, {"k": [5]}),
    "a choice with a way out": ({**holding({"$ref": "#/$defs/t"}), "$defs": {"t": {"anyOf": [{"$ref": "#/$defs/t"}, {"type": "integer"}]}}}, 5, "x"),
    "definitions in any place": ({**holding({"$ref": "#/components/schemas/pattern"}), "components": {"schemas": {"pattern": {"type": "integer"}}}}, 5, "x"),
    "escaped references": ({**holding({"$ref": "#/$defs/a~1b%20c"}), "$defs": {"a/b c": {"type": "integer"}}}, 5, "x"),
}  # fmt: skip


@pytest.mark.parametrize("name", DEGRADED)
def test_the_rest_of_a_schema_binds(compiler: GrammarCompiler, tokenizer: Tokenizer, name: str) -> None:
    schema, allowed, forbidden = DEGRADED[name]
    assert takes(compiler.compile(schema), tokenizer, {"a": allowed})
    if forbidden is not ...:
        assert not takes(compiler.compile(schema), tokenizer, {"a": forbidden})


def chain(link: Callable[[dict[str, Any]], dict[str, Any]], length: int) -> dict[str, Any]:
    """Return a schema of ``length`` definitions, each of which refers to the next."""
    links = {f"d{index}": link({"$ref": f"#/$defs/d{index - 1}"}) for index in range(1, length + 1)}
    return {**holding({"$ref": f"#/$defs/d{length}"}), "$defs": {**links, "d0": {"type": "integer"}}}


def nested(schema: dict[str, Any]) -> dict[str, Any]:
    return {"allOf": [schema, {}]}


LOOP = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}
REFUSED: dict[str, Any] = {
    "a loop": LOOP,
    "a loop of two": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
    "the root itself": {"$ref": "#"},
    "all of itself": {"allOf": [{"$ref": "#"}]},
    "any of itself": {"anyOf": [{"$ref": "#"}, {"$ref": "#"}]},
    "one of itself": {"oneOf": [{"$ref": "#"}]},
    "a loop inside": holding({"$ref": "#/properties/a"}),
    "a loop that is optional": {"type": "object", "properties": {"a": {"$ref": "#/properties/a"}}},
    "a loop among items": holding({"type": "array", "items": {"allOf": [{"$ref": "#/properties/a/items"}]}}),
    "no such part": {"$ref": "#/nowhere"},
    "another document": {"$ref": "https://example.test/schema.json"},
    "a file": {"$ref": "file:///etc/passwd"},
    "no such type": {"type": "strange"},
    "no such types": holding({"type": ["string", "date"]}),
    "no properties": {"type": "object", "properties": 3},
    "no expression": text(pattern="("),
    "no expression for names": {"type": "object", "patternProperties": {"(": {}}},
    "nothing is allowed": holding(False),
    "no value": holding({"enum": []}),
    "an empty range": integer(minimum=5, maximum=2),
    "too many parts": {"type": "object", "properties": {f"k{index}": {} for index in range(20_001)}},
    "too many levels": chain(nested, 9_000),
    "too many texts": holding({"enum": [f"value {index}" for index in range(100_000)]}),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_schema_that_nothing_can_obey(compiler: GrammarCompiler, name: str) -> None:
    with pytest.raises(RequestError, match="response_format: the JSON schema can't be used") as caught:
        compiler.compile(REFUSED[name])
    assert (caught.value.param, caught.value.code) == ("response_format", "invalid_json_schema")


@pytest.mark.parametrize("link", [dict, nested, holding, lambda schema: {"prefixItems": [schema]}])
def test_a_long_chain_of_references_does_not_end_the_process(
    compiler: GrammarCompiler, link: Callable[[dict[str, Any]], dict[str, Any]]
) -> None:
    """The library recurses, and an overflow of the stack would take the process along."""
    with suppress(RequestError):
        compiler.compile(chain(link, 1_900))


@pytest.mark.parametrize(
    "schema",
    [
        integer(multipleOf=9_973),
        number(multipleOf=0.0001),
        text(pattern="a{1000}{1000}"),
        text(minLength=10**6),
        text(maxLength=2**60),
    ],
)
def test_a_costly_schema_has_a_bounded_price(
    compiler: GrammarCompiler, tokenizer: Tokenizer, schema: Any
) -> None:
    grammar = compiler.compile(schema)
    for _ in range(20):
        allowed = np.flatnonzero(grammar.masks(make_draft([]))[0])
        grammar.advance([int(allowed[-1])])


def lark(schema: dict[str, Any], **more: dict[str, Any]) -> str:
    """Return the grammar of one call of a tool."""
    rules = {"f": schema, **more}
    lines = [
        f"{name}: %json {json.dumps({**one, 'x-guidance': {}, '$comment': f'the tool {name!r}'})}"
        for name, one in rules.items()
    ]
    return "\n".join([f"start: {' | '.join(rules)}", *lines])


@pytest.mark.parametrize("name", DEGRADED)
def test_the_rest_of_a_tools_schema_binds(compiler: GrammarCompiler, tokenizer: Tokenizer, name: str) -> None:
    schema, allowed, forbidden = DEGRADED[name]
    assert takes(compiler.compile_lark(lark(schema)), tokenizer, {"a": allowed})
    if forbidden is not ...:
        assert not takes(compiler.compile_lark(lark(schema)), tokenizer, {"a": forbidden})


@pytest.mark.parametrize("name", REFUSED)
def test_a_bad_tool_is_named(compiler: GrammarCompiler, name: str) -> None:
    with pytest.raises(
        RequestError, match="tools: the JSON schema of the tool 'bad' can't be used"
    ) as caught:
        compiler.compile_lark(lark(text(), bad=REFUSED[name]))
    assert (caught.value.param, caught.value.code) == ("tools", "invalid_json_schema")
