from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentspec.gateway.discovery.fingerprint import HEAD_CHARS, TAIL_CHARS, Fingerprint, read_features

FIELDS = (
    "messages role content type text system instructions input prompt tools functions function name"
    " response_format json_schema schema properties format"
).split()
WORDS = ("system", "user", "text", "input_text", "json_schema", "You plan trips.", "", "\ud800", "x\n:")
SCALARS = st.none() | st.booleans() | st.integers() | st.sampled_from(WORDS)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=4),
    max_leaves=20,
)
KEY = b"k" * 32
SYSTEM = "You plan trips."
USER = {"role": "user", "content": "To Rome."}
PARTS = [{"type": "text", "text": "You plan"}, {"type": "text", "text": "trips."}]
TOOL = {"type": "object", "properties": {}}


def fingerprint(body: dict[str, Any]) -> Fingerprint:
    features = read_features(body)
    assert features is not None
    return Fingerprint.of(features, KEY)


@pytest.mark.parametrize(
    "body",
    [
        {"messages": [{"role": "system", "content": SYSTEM}, USER]},
        {"messages": [{"role": "developer", "content": SYSTEM}, USER]},
        {"messages": [{"role": "system", "content": PARTS}, USER]},
        {
            "messages": [
                {"role": "system", "content": "You plan"},
                {"role": "system", "content": "trips."},
                USER,
            ]
        },
        {"messages": [USER], "system": SYSTEM},
        {"messages": [USER], "system": PARTS},
        {
            "messages": [USER],
            "system": [{"type": "text", "text": "x-anthropic-billing-header: cch=12ab3;"}, *PARTS],
        },
        {"instructions": SYSTEM, "input": "To Rome."},
        {"input": [{"role": "developer", "content": [{"type": "input_text", "text": SYSTEM}]}, USER]},
    ],
)
def test_a_system_prompt_is_found_in_every_form(body: dict[str, Any]) -> None:
    features = read_features(body)
    assert features is not None
    assert (features.text.split(), features.is_system) == (SYSTEM.split(), True)
    assert features.opening == hash("To Rome.")


@pytest.mark.parametrize(
    "body",
    [
        {"messages": [USER]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "To Rome."}]}]},
        {"prompt": "To Rome."},
        {"prompt": ["To Rome.", "To Oslo."]},
        {"input": "To Rome."},
        {"input": [USER]},
    ],
)
def test_without_one_the_first_message_counts(body: dict[str, Any]) -> None:
    features = read_features(body)
    assert features is not None
    assert (features.text, features.is_system) == ("To Rome.", False)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"prompt": [1, 2, 3]},
        {"prompt": [[1, 2]]},
        {"prompt": 7},
        {"messages": "text"},
        {"messages": [7, None, {"role": "user"}]},
        {"messages": [{"role": "user", "content": [{"type": "image_url"}, 7, {"type": "text", "text": 7}]}]},
        {"messages": None, "system": 7, "tools": 7, "response_format": 7},
        {"input": None, "instructions": {}},
        {"tools": [7, {}, {"function": {"name": 7}}], "response_format": {"type": "text"}},
    ],
)
def test_a_body_with_nothing_to_go_by(body: dict[str, Any]) -> None:
    assert read_features(body) is None


@pytest.mark.parametrize(
    "tools",
    [
        [{"type": "function", "function": {"name": "find", "parameters": TOOL}}, {"type": "web_search"}],
        [{"type": "web_search"}, {"type": "function", "name": "find", "parameters": TOOL}],
        [{"name": "web_search", "input_schema": TOOL}, {"name": "find", "input_schema": TOOL}],
    ],
)
def test_tools_are_names_in_order(tools: list[dict[str, Any]]) -> None:
    features = read_features({"messages": [USER], "tools": tools})
    assert features is not None
    assert features.tools == ("find", "web_search")


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ({"response_format": {"type": "json_object"}}, "json_object "),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "Plan", "schema": {"properties": {"to": {}, "by": {}}}},
                }
            },
            "json_schema Plan by to",
        ),
        (
            {
                "text": {
                    "format": {"type": "json_schema", "name": "Plan", "schema": {"properties": {"to": {}}}}
                }
            },
            "json_schema Plan to",
        ),
    ],
)
def test_the_answers_schema(form: dict[str, Any], expected: str) -> None:
    features = read_features({"messages": [USER], **form})
    assert features is not None
    assert features.schema == expected


def test_what_changes_from_request_to_request_is_not_in_it() -> None:
    first = fingerprint({"instructions": "Today is Monday, 2024-05-06. Work in /home/ann.", "input": "a"})
    second = fingerprint({"instructions": "Today is Friday, 2025-11-21.  Work in /tmp.", "input": "b"})
    assert first == second


def test_what_tells_stages_apart_is_in_it() -> None:
    body = {"messages": [{"role": "system", "content": SYSTEM}, USER]}
    tool = [{"type": "function", "function": {"name": "find"}}]
    others = [
        body,
        {**body, "tools": tool},
        {**body, "response_format": {"type": "json_object"}},
        {"messages": [{"role": "system", "content": "You plan tours."}, USER]},
        {"messages": [{"role": "user", "content": SYSTEM}]},
    ]
    assert len({fingerprint(one).digest for one in others}) == len(others)


def test_roles_are_never_compared() -> None:
    planner, coder = (
        fingerprint({"instructions": f"You are the {role}. Be brief."}) for role in ("planner", "coder")
    )
    other = fingerprint({"instructions": "You are the planner. Be kind."})
    assert planner.shape != coder.shape
    assert planner.shape == other.shape


def test_the_key_makes_the_digest() -> None:
    features = read_features({"prompt": "To Rome."})
    assert features is not None
    assert Fingerprint.of(features, b"a").digest != Fingerprint.of(features, b"b").digest
    assert features.raw_digest(b"a") != features.raw_digest(b"b")


def test_of_a_long_text_head_and_tail_count() -> None:
    middle = "long " * 20_000
    features = read_features({"instructions": f"begin {middle} end"})
    assert features is not None
    assert len(features.text) == HEAD_CHARS + TAIL_CHARS + 1
    assert features.text.startswith("begin ")
    assert features.text.endswith(" end")


def test_half_a_surrogate_pair_is_no_text_and_no_failure() -> None:
    assert fingerprint({"prompt": "odd \ud800"}).digest


@given(st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=5))
def test_no_body_is_a_failure(body: dict[str, Any]) -> None:
    features = read_features(body)
    if features is not None:
        assert Fingerprint.of(features, KEY) == Fingerprint.of(features, KEY)
        assert features.raw_digest(KEY) == features.raw_digest(KEY)
