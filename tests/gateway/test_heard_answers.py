"""Discovery hears the answers that clients received as a whole, of each API, through real servers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from itertools import count, product
from typing import Any

import httpx
import pytest
from starlette.types import Receive, Scope, Send

from agentspec.gateway import GatewaySettings, RuntimeConfig
from agentspec.gateway.auth.middleware import AuthMiddleware
from agentspec.gateway.call import Endpoint
from agentspec.gateway.discovery.service import Discovery
from agentspec.gateway.stages.read_tags import UrlTagsMiddleware
from agentspec.gateway.zero_hop import ZeroHopTagging
from tests.gateway.support.leaving import eventually
from tests.gateway.support.live import post, serving_app, serving_proxy

RULES = "Write the full implementation. Keep the signature. Never add a test. Answer with the code alone."
ANSWERS = {
    "python": "from typing import List\n\ndef solve(values: List[int]) -> int:\n    return 1",
    "rust": "use std::collections::HashMap;\n\nfn solve(values: Vec<i64>) -> i64 {\n    1\n}",
}
FORMS = [
    (Endpoint.CHAT, False),
    (Endpoint.CHAT, True),
    (Endpoint.COMPLETIONS, True),
    (Endpoint.RESPONSES, False),
    (Endpoint.RESPONSES, True),
    (Endpoint.MESSAGES, True),
]


def asked(endpoint: Endpoint, language: str, number: int, **fields: Any) -> dict[str, Any]:
    system, user = f"You respond with {language} code only. {RULES}", f"Task {number}"
    if endpoint == Endpoint.CHAT:
        messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
        return {"model": "m", "messages": messages, **fields}
    if endpoint == Endpoint.MESSAGES:
        messages = [{"role": "user", "content": user}]
        return {"model": "m", "max_tokens": 9, "system": system, "messages": messages, **fields}
    if endpoint == Endpoint.RESPONSES:
        return {"model": "m", "instructions": system, "input": user, **fields}
    return {"model": "m", "prompt": f"{system}\nQuestion: {user}\nAnswer:", **fields}


def answered(endpoint: Endpoint, text: str, is_streamed: bool) -> list[bytes]:
    """Return the parts of an answer as an engine sends them."""
    whole: dict[str, Any]
    parts: list[dict[str, Any]]
    if endpoint == Endpoint.CHAT:
        whole = {"choices": [{"index": 0, "message": {"content": text}}]}
        parts = [{"choices": [{"index": 0, "delta": {"content": one}}]} for one in (text[:9], text[9:])]
    elif endpoint == Endpoint.COMPLETIONS:
        whole = {"choices": [{"index": 0, "text": text}]}
        parts = [{"choices": [{"index": 0, "text": one}]} for one in (text[:9], text[9:])]
    elif endpoint == Endpoint.RESPONSES:
        item = {"type": "message", "content": [{"type": "output_text", "text": text}]}
        whole = {"object": "response", "status": "completed", "output": [item]}
        parts = [{"type": "response.output_text.delta", "delta": one} for one in (text[:9], text[9:])]
    else:
        whole = {"type": "message", "content": [{"type": "text", "text": text}]}
        parts = [
            {"type": "content_block_delta", "delta": {"type": "text_delta", "text": one}}
            for one in (text[:9], text[9:])
        ]
    if not is_streamed:
        return [json.dumps(whole).encode()]
    return [b"data: " + json.dumps(one).encode() + b"\n\n" for one in parts] + [b"data: [DONE]\n\n"]


class Engine:
    """Answers in the language that the prompt names. ``metadata.way`` says how it fails."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        raw, has_more = b"", True
        while has_more:
            message = await receive()
            raw, has_more = raw + message.get("body", b""), message.get("more_body", False)
        body = json.loads(raw or b"{}")
        text = next((text for language, text in ANSWERS.items() if f"{language} code" in raw.decode()), "")
        way = (body.get("metadata") or {}).get("way")
        is_streamed = bool(body.get("stream"))
        kind = b"text/event-stream" if is_streamed else b"application/json"
        status = 500 if way == "fails" else 200
        await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", kind)]})
        parts = answered(Endpoint(scope["path"]), text, is_streamed) if text else [b"{}"]
        for part in parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
            if way == "breaks":
                raise ConnectionError
            if way == "waits":
                await receive()
        await send({"type": "http.response.body", "body": b""})


@pytest.fixture
def discovery() -> Iterator[Discovery]:
    with closing(Discovery(in_background=False)) as discovery:
        yield discovery


@contextmanager
def gateway(discovery: Discovery) -> Iterator[str]:
    with serving_app(Engine()) as engine, serving_proxy(engine, discovery=discovery) as url:
        yield url


@contextmanager
def zero_hop(discovery: Discovery) -> Iterator[str]:
    tagging = ZeroHopTagging(Engine(), GatewaySettings(), discovery)
    with serving_app(UrlTagsMiddleware(AuthMiddleware(tagging, RuntimeConfig()))) as url:
        yield url


SERVERS = {"a gateway": gateway, "ZeroHop": zero_hop}


def num_heard(discovery: Discovery) -> int:
    discovery.catch_up()
    return sum(cluster.answers.num_taken for cluster in discovery.clusters(None))


def leave(url: str, body: dict[str, Any]) -> None:
    httpx.post(f"{url}{Endpoint.CHAT}", json=body, timeout=0.3, trust_env=False)


WAYS: dict[str, Callable[[str, dict[str, Any]], object]] = {
    "breaks": post,
    "fails": post,
    "waits": leave,
    "forbids": partial(post, x_agentspec_learn="0"),
}


@pytest.mark.parametrize(
    ("server", "endpoint", "is_streamed"),
    [*(("a gateway", *form) for form in FORMS), ("ZeroHop", Endpoint.CHAT, True)],
)
def test_a_stage_falls_apart_by_its_answers(
    discovery: Discovery, server: str, endpoint: Endpoint, is_streamed: bool
) -> None:
    numbers = count()

    def are_two() -> bool:
        for language in ANSWERS:
            asking = asked(endpoint, language, next(numbers), stream=is_streamed)
            assert post(url, asking, endpoint).is_success
        discovery.catch_up()
        return len(discovery.clusters("default")) == 2

    with SERVERS[server](discovery) as url:
        assert not are_two()
        assert eventually(are_two)
        assert next(numbers) > 16


@pytest.mark.parametrize("server", SERVERS)
def test_what_no_client_received_as_a_whole_is_not_heard(discovery: Discovery, server: str) -> None:
    with SERVERS[server](discovery) as url:
        for language in ANSWERS:
            post(url, asked(Endpoint.CHAT, language, 0))
            discovery.catch_up()
        for number, (way, is_streamed) in enumerate(product(WAYS, (False, True)), 1):
            with suppress(httpx.HTTPError):
                WAYS[way](
                    url, asked(Endpoint.CHAT, "rust", number, stream=is_streamed, metadata={"way": way})
                )
        assert post(url, asked(Endpoint.CHAT, "rust", 100)).is_success
        assert eventually(lambda: num_heard(discovery) > 0)
        assert num_heard(discovery) == 1
