from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.types import Message, Receive, Scope, Send

from agentspec.errors import ConfigError
from agentspec.gateway import GatewaySettings
from agentspec.gateway.auth.api_keys import API_KEYS_VARIABLE
from agentspec.gateway.settings import DISCOVERY_FILE_VARIABLE
from agentspec.gateway.upstreams.routing import RANK_HEADER, SIZE_VARIABLE
from agentspec.gateway.zero_hop import TAGGED_PATHS, ZeroHop, ZeroHopTagging
from agentspec.tags import subject_hash
from tests.gateway.support.leaving import eventually
from tests.gateway.support.limited_fields import PERHAPS_TOO_LONG, SHORT_ENOUGH, TOO_LONG
from tests.gateway.support.live import TIMEOUT_S, serving_app

ODD_BODY = b'{ "messages":[{"role":"user","content":"caf\\u00e9 \xc3\xa9"}],\n "x_unknown": 1.50 }'
PIECES = (b'data: {"odd":   "spacing"}\n\n', b": ping\n\n", b"data: [DONE]\n\n")


class Server:
    """A stand-in for vLLM's server: records each request and streams ``PIECES`` back.

    A body with ``"wait": true`` gets no response. ``has_left`` is True after its client disconnected.
    """

    def __init__(self) -> None:
        self.requests: list[tuple[Scope, bytes]] = []
        self.is_waiting = self.has_left = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            for _ in range(2):
                await send({"type": f"{(await receive())['type']}.complete"})
            return
        body = await self._body(receive)
        self.requests.append((scope, body))
        if b'"wait"' in body:
            self.is_waiting = True
            self.has_left = (await receive())["type"] == "http.disconnect"
            return
        headers = [(b"content-type", b"text/event-stream"), (b"x-own", b"kept")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for piece in PIECES:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    @staticmethod
    async def _body(receive: Receive) -> bytes:
        parts: list[bytes] = []
        message: Message = {"more_body": True}
        while message.get("more_body", False):
            message = await receive()
            parts.append(message.get("body", b""))
        return b"".join(parts)

    @property
    def last_xargs(self) -> dict[str, Any]:
        xargs: dict[str, Any] = json.loads(self.requests[-1][1])["vllm_xargs"]
        return xargs


@pytest.fixture
def server() -> Server:
    return Server()


@contextmanager
def zero_hop(server: Server, monkeypatch: pytest.MonkeyPatch, keys: str = "") -> Iterator[str]:
    monkeypatch.setenv(API_KEYS_VARIABLE, keys)
    with serving_app(ZeroHop(server)) as url:
        yield url


@pytest.fixture
def url(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with zero_hop(server, monkeypatch) as url:
        yield url


@pytest.fixture
def locked_url(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with zero_hop(server, monkeypatch, " ka=acme, kb=bolt,") as url:
        yield url


def send(
    url: str, path: str, body: Any = ODD_BODY, *, method: str = "POST", **headers: str
) -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.request(
        method, url + path, content=content, headers=named, timeout=TIMEOUT_S, trust_env=False
    )


@pytest.mark.parametrize("path", sorted(TAGGED_PATHS))
def test_requests_are_tagged_and_bytes_pass(url: str, server: Server, path: str) -> None:
    answer = send(
        url,
        f"/stages/flow/caf%C3%A9{path}",
        x_session_id="s",
        x_agentspec_max_draft="3",
        x_agentspec_learn="0",
        x_agentspec_subject="ann",
    )
    scope, body = server.requests[-1]
    assert scope["path"] == path
    assert body.endswith(ODD_BODY[1:])
    assert dict(scope["headers"])[b"content-length"] == b"%d" % len(body)
    assert server.last_xargs == {
        "agentspec_stage": "flow/café",
        "agentspec_tenant": "default",
        "agentspec_session": "s",
        "agentspec_max_draft": 3,
        "agentspec_learn": 0,
        "agentspec_subject": subject_hash("default", "ann").hex(),
    }
    assert answer.content == b"".join(PIECES)
    assert answer.headers["x-own"] == "kept"
    assert answer.headers.get_list("x-agentspec-stage") == ["flow/caf%C3%A9"]
    assert answer.headers.get_list("x-agentspec-stage-source") == ["url"]


def test_requests_name_the_data_parallel_rank_of_their_stage(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SIZE_VARIABLE, "64")
    with zero_hop(server, monkeypatch) as url:
        for stage in ("flow/a", "flow/b", "flow/c", "flow/a"):
            send(url, "/v1/chat/completions", {"messages": []}, x_agentspec_stage=stage)
        send(url, "/v1/chat/completions", {"messages": []}, x_data_parallel_rank="3")
    *ranks, given = [
        [value for name, value in scope["headers"] if name == RANK_HEADER.encode()]
        for scope, _ in server.requests
    ]
    assert ranks[0] == ranks[3]
    assert all(len(rank) == 1 and 0 <= int(rank[0]) < 64 for rank in ranks)
    assert len(set(map(tuple, ranks))) > 1
    assert given == [b"3"]


@pytest.mark.parametrize("path", sorted(TAGGED_PATHS))
def test_what_would_end_the_engine_does_not_reach_it(url: str, server: Server, path: str) -> None:
    for fields, param, most in TOO_LONG:
        answer = send(url, path, {"messages": [], **fields})
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == param
        assert answer.json()["error"]["message"].endswith(f"vLLM has room for {most}: send fewer")
    assert not server.requests


def test_what_vllm_has_room_for_or_counts_itself_reaches_it(url: str, server: Server) -> None:
    for fields in (*SHORT_ENOUGH, *(fields for fields, _, _ in PERHAPS_TOO_LONG)):
        assert send(url, "/v1/completions", {"prompt": "x", **fields}).status_code == 200
        assert json.loads(server.requests.pop()[1]).items() >= fields.items()


def test_a_client_cannot_tag_itself(url: str, server: Server) -> None:
    forged = {"agentspec_tenant": "victim", "agentspec_new": 1, "other": 2}
    send(url, "/v1/responses", {"vllm_xargs": forged}, x_agentspec_stage="a")
    assert server.last_xargs == {
        "agentspec_stage": "a",
        "agentspec_tenant": "default",
        "agentspec_learn": 1,
        "other": 2,
    }


def test_the_prediction_goes_along(url: str, server: Server) -> None:
    prediction = {"type": "content", "content": [{"type": "text", "text": "é"}]}
    send(url, "/v1/chat/completions", {"prediction": prediction})
    assert server.last_xargs["agentspec_prediction"] == "é"
    assert json.loads(server.requests[-1][1])["prediction"] == prediction


@pytest.mark.parametrize("is_chunked", [False, True])
def test_a_body_in_pieces(url: str, server: Server, is_chunked: bool) -> None:
    parts = iter([ODD_BODY[:20], ODD_BODY[20:]])
    answer = httpx.post(f"{url}/v1/completions", content=parts if is_chunked else ODD_BODY)
    assert answer.status_code == 200
    scope, body = server.requests[-1]
    headers = dict(scope["headers"])
    assert headers[b"content-length"] == b"%d" % len(body)
    assert b"transfer-encoding" not in headers


@pytest.mark.parametrize("path", ["/health", "/v1/models", "/stages/a/v1/models", "/agentspec/status"])
def test_what_does_not_generate_passes_as_it_is(url: str, server: Server, path: str) -> None:
    answer = send(url, path, b"", method="GET")
    assert answer.content == b"".join(PIECES)
    assert "x-agentspec-stage" not in answer.headers
    assert server.requests[-1][1] == b""


@pytest.mark.parametrize("path", ["/tokenize", "/inference/v1/generate"])
def test_other_bodies_pass_as_they_are_where_nobody_has_a_key(url: str, server: Server, path: str) -> None:
    assert send(url, path, b"no json").status_code == 200
    assert server.requests[-1][1] == b"no json"


@pytest.mark.parametrize(
    ("body", "headers", "code"),
    [
        (b"{", {}, "invalid_json"),
        (b"[]", {}, "invalid_json"),
        (b"{}", {"x_agentspec_stage": "a//b"}, "invalid_stage"),
        (b'{"metadata": {"agentspec_stage": 5}}', {}, "invalid_stage"),
        (b'{"prediction": 5}', {}, "invalid_value"),
        (b'{"vllm_xargs": [1]}', {}, None),
    ],
)
def test_what_is_malformed_does_not_reach_the_engine(
    url: str, server: Server, body: bytes, headers: dict[str, str], code: str | None
) -> None:
    answer = send(url, "/v1/chat/completions", body, **headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, code)
    assert server.requests == []


def test_a_body_over_the_limit(server: Server) -> None:
    with serving_app(ZeroHopTagging(server, GatewaySettings(body_limit_bytes=1024))) as url:
        answer = send(url, "/v1/completions", {"prompt": "x" * 3000})
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "body_too_large")
    assert server.requests == []


def test_a_client_that_leaves_is_seen_by_the_server(url: str, server: Server) -> None:
    body = b'{"wait": true}'
    where = httpx.URL(url)
    with socket.create_connection((where.host, where.port or 0)) as connection:
        connection.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%s"
            % (len(body), body)
        )
        assert eventually(lambda: server.is_waiting)
        assert not server.has_left
    assert eventually(lambda: server.has_left)


def test_a_client_that_leaves_while_it_sends_leaves_nothing(url: str, server: Server) -> None:
    where = httpx.URL(url)
    with socket.create_connection((where.host, where.port or 0)) as connection:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
    assert send(url, "/health", b"", method="GET").status_code == 200
    assert [scope["path"] for scope, _ in server.requests] == ["/health"]


def test_the_tenant_comes_from_the_key_alone(locked_url: str, server: Server) -> None:
    forged = {"vllm_xargs": {"agentspec_tenant": "victim"}}
    for key, tenant in (("ka", "acme"), ("kb", "bolt")):
        assert send(locked_url, "/v1/messages", forged, authorization=f"Bearer {key}").status_code == 200
        assert server.last_xargs["agentspec_tenant"] == tenant


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/stages/a/v1/completions", "/v1/embeddings"])
def test_without_a_key_there_is_no_way_in(locked_url: str, server: Server, path: str) -> None:
    for headers in ({}, {"authorization": "Bearer nobody"}):
        answer = send(locked_url, path, **headers)
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
    assert server.requests == []


@pytest.mark.parametrize(
    "path",
    [
        "/inference/v1/generate",
        "/invocations",
        "/v1/audio/transcriptions",
        "/cohere/v2/chat",
        "/v1/load_lora_adapter",
        "/v1/chat/completions/",
        "//v1/chat/completions",
        "/sleep",
    ],
)
def test_where_tenants_are_kept_apart_nothing_untagged_generates(
    locked_url: str, server: Server, path: str
) -> None:
    answer = send(locked_url, path, authorization="Bearer ka")
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden")
    assert server.requests == []


def test_what_needs_no_tenant_stays_open(locked_url: str, server: Server) -> None:
    for method, path in (
        ("GET", "/health"),
        ("GET", "/metrics"),
        ("OPTIONS", "/v1/completions"),
        ("POST", "/agentspec/evict"),  # the control channel has its own token
    ):
        assert send(locked_url, path, b"", method=method).status_code == 200
    assert send(locked_url, "/tokenize", b"", method="POST").status_code == 401
    assert len(server.requests) == 4


@pytest.mark.parametrize(("keys", "expected"), [("", True), ("ka", False)])
async def test_web_sockets_carry_no_tenant(
    server: Server, monkeypatch: pytest.MonkeyPatch, keys: str, expected: bool
) -> None:
    monkeypatch.setenv(API_KEYS_VARIABLE, keys)
    seen: list[str] = []
    sent: list[Message] = []

    async def inner(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope["type"])

    async def receive() -> Message:
        return {"type": "websocket.connect"}

    async def keep(message: Message) -> None:
        sent.append(message)

    await ZeroHop(inner)({"type": "websocket", "path": "/v1/realtime", "headers": []}, receive, keep)
    assert seen == (["websocket"] if expected else [])
    assert sent == ([] if expected else [{"type": "websocket.close", "code": 1008}])


def test_a_bad_key_keeps_the_server_from_starting(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(API_KEYS_VARIABLE, "s3cret=a,s3cret=b")
    with pytest.raises(ConfigError) as caught:
        ZeroHop(server)
    assert "s3cret" not in str(caught.value)


def test_requests_without_a_tag_are_told_apart_by_their_prompts(
    server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    body = {"messages": [{"role": "system", "content": "Plan the trip."}, {"role": "user", "content": "hi"}]}
    monkeypatch.setenv(DISCOVERY_FILE_VARIABLE, str(tmp_path / "stages.sqlite"))
    with zero_hop(server, monkeypatch, "ka=acme,kb=bolt") as url:
        key = {"authorization": "Bearer ka"}
        first = send(url, "/v1/chat/completions", body, **key)
        assert first.headers["x-agentspec-stage"].startswith("discovered")
        assert first.headers["x-agentspec-stage-source"] == "fingerprint"
        eventually(lambda: clusters(url, key))
        [cluster] = clusters(url, key)
        send(url, f"/agentspec/clusters/{cluster['id']}", {"name": "trip/plan"}, method="PATCH", **key)
        send(url, "/v1/chat/completions", body, **key)
        assert server.last_xargs["agentspec_stage"] == "trip/plan"
        assert clusters(url, {"authorization": "Bearer kb"}) == []
        assert send(url, "/agentspec/clusters", method="GET").status_code == 401


def clusters(url: str, key: dict[str, str]) -> list[dict[str, Any]]:
    told: list[dict[str, Any]] = send(url, "/agentspec/clusters", b"", method="GET", **key).json()["clusters"]
    return told


def test_a_file_that_is_none_keeps_the_server_from_starting(
    server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(DISCOVERY_FILE_VARIABLE, str(tmp_path / "none" / "stages.sqlite"))
    with pytest.raises(ConfigError, match="no such folder"):
        ZeroHop(server)
