from __future__ import annotations

from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from agentspec.gateway.call import Principal, RateLimits
from agentspec.gateway.http.context import (
    NO_URL_TAGS,
    UrlTags,
    context_of,
    ensure_context,
)
from agentspec.gateway.stages.read_tags import UrlTagsMiddleware


def http_scope(path: str = "/v1/models", headers: tuple[tuple[bytes, bytes], ...] = ()) -> dict[str, Any]:
    return {"type": "http", "path": path, "raw_path": path.encode(), "headers": list(headers)}


async def send(message: Message) -> None:
    pass


async def receive() -> Message:
    return {"type": "http.disconnect"}


def test_before_authentication_no_tenant_is_known() -> None:
    context = ensure_context(http_scope(), send)
    with pytest.raises(AttributeError):
        _ = context.tenant
    with pytest.raises(AttributeError):
        _ = context.principal
    context.principal = Principal("acme", RateLimits(None, None, lambda: 0.0))
    context.tenant = None  # an operator's request for all tenants
    assert context.principal.tenant == "acme"
    assert context.tenant is None


@pytest.mark.parametrize(
    ("path", "tags"),
    [
        ("/v1/models", None),
        ("/stages/a%2Fv1%2Fb/v1/models", UrlTags(stage="a%2Fv1%2Fb")),
        ("/stages/a/v1/v1/models", UrlTags(stage="a/v1")),
        ("/stages/sessions/x/v1/models", UrlTags(stage="sessions/x")),
        ("/workflows/a/b/v1/models", UrlTags(workflow="a/b")),
        ("/sessions/run%201/v1/models", UrlTags(session="run%201")),
        ("/sessions/run-1/stages/a/b/v1/models", UrlTags(stage="a/b", session="run-1")),
        ("/sessions/run-1/workflows/flow/v1/models", UrlTags(workflow="flow", session="run-1")),
        ("/stages/no-api", None),
        ("/sessions/run-1/other/v1/models", None),
        ("/sessions/run-1/v1/v1/models", None),
        ("/sessions/run-1/workflows/flow/v1/v1/models", None),
        ("/sessions/run-1", None),
        ("/stagesa/v1/models", None),
    ],
)
async def test_the_tags_in_the_url_are_in_the_context(path: str, tags: UrlTags | None) -> None:
    found: list[Scope] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        found.append(scope)

    outer = http_scope(path)
    await UrlTagsMiddleware(app)(outer, receive, send)
    assert found[0]["path"] == (path if tags is None else "/v1/models")
    assert context_of(found[0]).url_tags == (tags or NO_URL_TAGS)
    if tags is not None:  # else the server's scope would keep the context, which close_context can't reach
        assert outer == http_scope(path)
