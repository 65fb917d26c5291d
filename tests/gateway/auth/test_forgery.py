"""Only the API key identifies the principal: no other claim of an identity reaches an engine."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from agentspec.gateway import ApiKeys
from tests.gateway.support.live import TIMEOUT_S, post, serving_proxy
from tests.gateway.support.misbehaving import Misbehaving, misbehaving

KEY = "Bearer mine"
VICTIM = "victim"
FORGED = {"agentspec_tenant": VICTIM, "agentspec_stage": "theirs", "agentspec_session": "theirs"}
MESSAGES = '"messages": [{"role": "user", "content": "hi"}]'


@pytest.fixture(scope="module")
def engine() -> Iterator[Misbehaving]:
    with misbehaving() as engine:
        yield engine


@pytest.fixture(scope="module")
def root(engine: Misbehaving) -> Iterator[str]:
    keys = ApiKeys.parse(["mine=me", "theirs=victim"])
    with serving_proxy(engine.url, keys=keys, admin_key="admin") as root:
        yield root


def arrived(engine: Misbehaving) -> dict[str, Any]:
    """Return the last body. Each key must occur once, as a parser may keep only the last duplicate."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in pairs if name == "vllm_xargs" or name.startswith("agentspec_")]
        assert len(names) == len(set(names))
        return dict(pairs)

    body: dict[str, Any] = json.loads(engine.requests[-1].partition(b"\r\n\r\n")[2], object_pairs_hook=once)
    return body


def check(engine: Misbehaving, stage: str = "default") -> None:
    tags = arrived(engine)["vllm_xargs"]
    assert (tags["agentspec_tenant"], tags["agentspec_stage"]) == ("me", stage)
    assert set(tags) & {"agentspec_session", "agentspec_new"} == set()


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"])
@pytest.mark.parametrize(
    "body",
    [
        {"vllm_xargs": FORGED},
        FORGED,
        {"extra_body": {"vllm_xargs": FORGED}, "extra_args": FORGED, "metadata": {"vllm_xargs": FORGED}},
        {"vllm_xargs": {"vllm_xargs": FORGED, "agentspec_new": 1}},
        {"vllm_xargs": None},
    ],
)
def test_by_the_body(root: str, engine: Misbehaving, path: str, body: dict[str, Any]) -> None:
    assert post(root, body, path, authorization=KEY).status_code == 200
    check(engine)


@pytest.mark.parametrize(
    "body",
    [
        '{"vllm_xargs": {}, "vllm_xargs": {"agentspec_tenant": "victim"}, %s}',
        '{"vllm_xargs": {"agentspec_tenant": "victim"}, "vllm_xargs": {}, %s}',
        '{%s, "vllm_xargs": {"a": 1, "agentspec_tenant": "victim", "agentspec_tenant": "victim"}}',
        '{"vllm_xargs": {"a": 1}, "vllm\\u005fxargs": {"agentspec_tenant": "victim"}, %s}',
        '{"vllm_xargs": {"agentspec\\u005ftenant": "victim", "\\u0061gentspec_new": 1}, %s}',
        '{"\\u0076llm_xargs": {"agentspec_tenant": "victim"}, %s}',
        "  \n\t{%s}",
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_by_how_the_body_is_written(root: str, engine: Misbehaving, body: str, encoding: str) -> None:
    answer = post(root, (body % MESSAGES).encode(encoding), authorization=KEY)
    assert answer.status_code == 200
    check(engine)


@pytest.mark.parametrize(
    "kind", ["multipart/form-data; boundary=x", "application/x-www-form-urlencoded", "a/b"]
)
def test_by_another_kind_of_body(root: str, engine: Misbehaving, kind: str) -> None:
    before = len(engine.requests)
    field = b'content-disposition: form-data; name="vllm_xargs"\r\n\r\n{"agentspec_tenant": "victim"}'
    form = b"--x\r\n%s\r\n--x--" % field
    answer = post(root, form, authorization=KEY, content_type=kind)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_json")
    assert post(root, form, "/v1/audio/transcriptions", authorization=KEY).status_code == 403
    assert len(engine.requests) == before


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("X-AgentSpec-Tenant", VICTIM),
        ("agentspec_tenant", VICTIM),
        ("vllm_xargs", json.dumps(FORGED)),
        ("baggage", "agentspec.tenant=victim,tenant=victim,agentspec_tenant=victim"),
        ("baggage", "gen_ai.workflow.name=..%2F..%2Fvictim"),
        ("X-Api-Key", "theirs"),
        ("Forwarded", "for=127.0.0.1"),
        ("Connection", "x-agentspec-stage, authorization, content-length, host"),
    ],
)
def test_by_a_header(root: str, engine: Misbehaving, name: str, value: str) -> None:
    headers = [("authorization", KEY), (name, value)]
    answer = httpx.post(f"{root}/v1/completions", headers=headers, json={"prompt": "a"}, timeout=TIMEOUT_S)
    assert answer.status_code == 200
    assert arrived(engine)["vllm_xargs"]["agentspec_tenant"] == "me"


def test_by_two_headers_of_a_name(root: str, engine: Misbehaving) -> None:
    """The first header is the valid one, and the only one that the engine receives."""
    headers = [
        ("authorization", KEY),
        ("Authorization", "Bearer theirs"),
        ("x-agentspec-stage", "a"),
        ("X-AGENTSPEC-STAGE", "b"),
    ]
    httpx.post(f"{root}/v1/completions", headers=headers, json={"prompt": "a"}, timeout=TIMEOUT_S)
    check(engine, "a")
    head = engine.requests[-1].partition(b"\r\n\r\n")[0].lower()
    assert head.count(b"x-agentspec-stage: a") == 1
    assert b"x-agentspec-stage: b" not in head


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-16-be", "utf-32-le"])
@pytest.mark.parametrize("key", ["agentspec_tenant", "agentspec\\u005ftenant"])
def test_by_a_body_that_gets_no_tags(root: str, engine: Misbehaving, encoding: str, key: str) -> None:
    before = len(engine.requests)
    body = f'{{"vllm_xargs": {{"{key}": "victim"}}}}'.encode(encoding)
    answer = post(root, body, "/inference/v1/generate", authorization="Bearer admin")
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "forged_tag")
    assert len(engine.requests) == before


def ask(root: str, line: str, *headers: str, body: bytes = b"{}") -> bytes:
    """Send the lines unchanged, without normalisation, and return the response."""
    url = httpx.URL(root)
    lines = [line, "host: x", "connection: close", f"content-length: {len(body)}", *headers]
    with socket.create_connection((url.host, url.port or 0), timeout=TIMEOUT_S) as connection:
        connection.sendall("\r\n".join([*lines, "", ""]).encode("latin-1") + body)
        return b"".join(iter(lambda: connection.recv(65536), b""))


@pytest.mark.parametrize(
    "path",
    [
        "/agentspec/save",
        "/%61gentspec/save",
        "/agentspec%2Fsave",
        "//agentspec/save",
        "/stages/a/v1/..%2f..%2fagentspec/save",
        "/stages/a/v1/%2e%2e/agentspec/save",
        "/v1/models/%2E%2E/%2e%2e/agentspec/save",
        "/v1/../agentspec/save",
        "/v1//agentspec/save",
        "/v1/models/..%5c..%5cagentspec/save",
        "http://127.0.0.1/agentspec/save",
        "/metrics",
        "//metrics",
        "/v1/models/../../metrics",
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_by_the_path(root: str, engine: Misbehaving, path: str, method: str) -> None:
    """A tenant reaches no operator endpoint, in the gateway or the engine."""
    before = len(engine.requests)
    answer = ask(root, f"{method} {path} HTTP/1.1", f"authorization: {KEY}")
    assert answer.split()[1] in (b"403", b"404", b"405")
    assert len(engine.requests) == before


@pytest.mark.parametrize(
    ("stage", "expected"),
    [
        ("a%2Fb", "a/b"),
        ("a/v1/b", "a/v1/b"),
        ("%61", "a"),
        ("a%0d%0ax-agentspec-tenant:%20victim", None),
        ("a%00", None),
        ("%2e%2e/victim", None),
        ("..", None),
        ("a//b", None),
    ],
)
def test_by_the_stage_in_the_path(root: str, engine: Misbehaving, stage: str, expected: str | None) -> None:
    before = len(engine.requests)
    line = f"POST /stages/{stage}/v1/completions HTTP/1.1"
    answer = ask(root, line, f"authorization: {KEY}", body=b'{"prompt": "a"}')
    head = answer.partition(b"\r\n\r\n")[0]
    assert b"\r\nx-agentspec-tenant" not in head
    if expected is None and answer.startswith(b"HTTP/1.1 400 "):
        assert len(engine.requests) == before
    elif expected is None:
        assert arrived(engine)["vllm_xargs"]["agentspec_tenant"] == "me"
        assert b"\r\nx-agentspec-tenant" not in engine.requests[-1]
    else:
        check(engine, expected)


@pytest.mark.parametrize("given", ["a b", "a%0d%0ax: y", "x" * 129, "caf\xe9", "a\tb", "<script>"])
def test_a_request_id_is_no_way_to_write_headers(root: str, given: str) -> None:
    answer = ask(root, "POST /v1/completions HTTP/1.1", f"authorization: {KEY}", f"x-request-id: {given}")
    lines = [line for line in answer.split(b"\r\n") if line.startswith(b"x-request-id")]
    assert len(lines) == 1
    assert given.encode("latin-1") not in lines[0]


def test_a_smuggled_request_is_a_part_of_the_body(root: str, engine: Misbehaving) -> None:
    hidden = b"GET /metrics HTTP/1.1\r\nhost: x\r\nauthorization: Bearer theirs\r\n\r\n"
    before = len(engine.requests)
    answer = ask(root, "POST /v1/completions HTTP/1.1", f"authorization: {KEY}", body=hidden)
    assert answer.count(b"HTTP/1.1 ") == 1
    assert b"invalid_json" in answer
    assert len(engine.requests) == before
