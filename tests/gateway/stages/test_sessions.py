"""Sessions of calls: the headers and bodies of clients and of other projects' routers."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.datastructures import Headers

from agentspec.errors import RequestError
from agentspec.gateway.http.context import NO_URL_TAGS, UrlTags
from agentspec.gateway.stages.read_tags import read_tags
from agentspec.wire import SESSION_HEADER, SESSION_HEADERS

HINTS = SESSION_HEADERS[1:]
TOO_LONG = "s" * 256


def session_of(
    headers: dict[str, str], body: dict[str, Any] | None = None, url: str | None = None
) -> str | None:
    return read_tags("acme", Headers(headers), UrlTags(session=url), body or {}).session


@pytest.mark.parametrize("name", SESSION_HEADERS)
def test_every_header_names_a_session(name: str) -> None:
    assert session_of({name: "run-1"}) == "run-1"
    assert session_of({name.upper(): "run-1", "x-other": "run-2"}) == "run-1"


def test_the_first_of_several_headers_counts() -> None:
    sent = {name: f"by {name}" for name in reversed(SESSION_HEADERS)}
    for name in SESSION_HEADERS:
        assert session_of(sent) == f"by {name}"
        del sent[name]
    assert session_of(sent) is None


@pytest.mark.parametrize("name", HINTS)
@pytest.mark.parametrize("value", ["", TOO_LONG, "a\tb", "a\x80b"])
def test_a_malformed_hint_is_skipped(name: str, value: str) -> None:
    assert session_of({name: value}) is None
    assert (
        session_of({name: value, HINTS[-1]: "next"} if name != HINTS[-1] else {HINTS[-1]: "next"}) == "next"
    )


@pytest.mark.parametrize("value", [TOO_LONG, "a\tb", "a\x80b"])
def test_a_malformed_session_of_ours_is_an_error(value: str) -> None:
    with pytest.raises(RequestError, match="at most 255 printable characters") as caught:
        session_of({SESSION_HEADER: value, "x-session-id": "run-1"})
    assert caught.value.param == SESSION_HEADER


def test_the_urls_session_counts_behind_our_own_header_only() -> None:
    others = dict.fromkeys(HINTS, "of a client")
    assert session_of({SESSION_HEADER: "mine", **others}, url="run-1") == "mine"
    assert session_of({SESSION_HEADER: "", **others}, url="run-1") == "run-1"
    assert session_of(others, {"vllm_xargs": {"agentic_context": {"session_id": "x"}}}, "run-1") == "run-1"
    assert session_of(others, url="") == "of a client"
    with pytest.raises(RequestError, match="the URL's session"):
        session_of(others, url=TOO_LONG)


@pytest.mark.parametrize(
    ("body", "session"),
    [
        ({"vllm_xargs": {"agentic_context": {"program_id": "p", "task_id": "t"}}}, "t"),
        ({"vllm_xargs": {"agentic_context": {"program_id": "p", "root_program_id": "r"}}}, "r"),
        ({"vllm_xargs": {"agentic_context": {"session_id": "s", "task_id": "t", "program_id": "p"}}}, "s"),
        ({"nvext": {"agent_context": {"workflow_id": "w", "program_id": "w:researcher"}}}, "w"),
        ({"nvext": {"agent_context": {"session_id": "child", "parent_session_id": "run"}}}, "run"),
        ({"nvext": {"session_control": {"session_id": "s", "timeout": 300}}}, "s"),
        ({"nvext": {"agent_hints": {"prefix_id": "agent-1", "osl": 512, "priority": 5}}}, "agent-1"),
        ({"agent_hint": {"session_id": "child", "parent_session_id": "run"}}, "run"),
        ({"nvext": {"agent_hints": {"osl": 512}}, "agent_hint": {"session_id": "s"}}, "s"),
        ({"vllm_xargs": {"agentic_context": {"task_id": "t"}}, "agent_hint": {"session_id": "s"}}, "t"),
    ],
)
def test_a_body_names_a_session(body: dict[str, Any], session: str) -> None:
    assert session_of({}, body) == session
    assert session_of({"x-session-id": TOO_LONG}, body) == session
    assert session_of({"session_id": "header"}, body) == "header"


@pytest.mark.parametrize("value", ["", TOO_LONG, "a\nb", 7, True, None, ["s"], {"id": "s"}])
def test_a_malformed_session_in_a_body_is_skipped(value: object) -> None:
    assert session_of({}, {"agent_hint": {"parent_session_id": value, "session_id": "next"}}) == "next"
    for path in (("vllm_xargs", "agentic_context"), ("nvext", "agent_context"), ("nvext", "agent_hints")):
        outer, inner = path
        assert session_of({}, {outer: {inner: value}}) is None
        assert session_of({}, {outer: value}) is None
        names = ("session_id", "workflow_id", "prefix_id")
        assert session_of({}, {outer: {inner: dict.fromkeys(names, value)}}) is None


WEAK: list[tuple[dict[str, str], dict[str, Any]]] = [  # in order of precedence
    ({"x-litellm-trace-id": "trace"}, {}),
    ({}, {"session_id": "vllm"}),
    ({}, {"prompt_cache_key": "cache"}),
    ({"x-fairness-id": "fair"}, {}),
]


@pytest.mark.parametrize("first", range(len(WEAK)))
def test_what_serves_other_purposes_names_a_session_last(first: int) -> None:
    headers = {name: value for one, _ in WEAK[first:] for name, value in one.items()}
    body = {name: value for _, one in WEAK[first:] for name, value in one.items()}
    expected = [*WEAK[first][0].values(), *WEAK[first][1].values()]
    assert [session_of(headers, body)] == expected
    for name in SESSION_HEADERS:
        assert session_of({**headers, name: "run-1"}, body) == "run-1"
    assert session_of(headers, {**body, "agent_hint": {"session_id": "run-1"}}) == "run-1"
    assert session_of(headers, body, "run-1") == "run-1"


def test_a_session_never_becomes_a_stage() -> None:
    for headers, body in WEAK:
        tags = read_tags("acme", Headers(headers), NO_URL_TAGS, body)
        assert (tags.stage.name, tags.stage_source) == ("default", "default")
