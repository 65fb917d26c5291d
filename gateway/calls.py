"""Whatever an upstream answers: the requests that generate, tagged, and all others as they came."""

from __future__ import annotations

import logging

from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from agentspec.gateway.auth import TENANT_KEY
from agentspec.gateway.call import Call, Endpoint
from agentspec.gateway.drain import Drain
from agentspec.gateway.errors import UnknownUrlError
from agentspec.gateway.lifeline import ClientGoneError, run_while_connected
from agentspec.gateway.reply import Reply
from agentspec.gateway.request_body import parse_body, read_body
from agentspec.gateway.request_id import REQUEST_ID_KEY
from agentspec.gateway.settings import GatewaySettings
from agentspec.gateway.tags import read_tags
from agentspec.gateway.upstream import Upstream
from agentspec.gateway.url_stage import URL_STAGE_KEY

TAGGED_PATHS = frozenset(Endpoint)
DOTS = frozenset((".", ".."))

logger = logging.getLogger("agentspec.gateway")


class Calls:
    """All calls to one upstream, as an ASGI application."""

    def __init__(self, upstream: Upstream, settings: GatewaySettings, drain: Drain) -> None:
        self._upstream = upstream
        self._settings = settings
        self._drain = drain

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read, tag, answer; every failure is told in OpenAI's form."""
        reply = Reply(send)
        try:
            await self._drain.run(self._answer(scope, receive, reply))
        except ClientGoneError:
            logger.debug("%s: the client left", scope[REQUEST_ID_KEY])
        except Exception as error:
            await reply.fail(error)

    async def _answer(self, scope: Scope, receive: Receive, reply: Reply) -> None:
        call = await self._read(scope, receive)
        if call.tags is not None:
            reply.headers.extend(call.tags.answer_headers)
        await run_while_connected(self._upstream.answer(call, reply), receive)

    async def _read(self, scope: Scope, receive: Receive) -> Call:
        if not DOTS.isdisjoint(scope["path"].split("/")):  # they would lead elsewhere in the upstream
            raise UnknownUrlError(scope["method"], scope["path"])
        headers = Headers(scope=scope)
        raw_body = await read_body(receive, self._settings.body_limit_bytes)
        is_tagged = scope["method"] == "POST" and scope["path"] in TAGGED_PATHS
        body = parse_body(raw_body) if is_tagged else None
        tags = None if body is None else read_tags(scope[TENANT_KEY], headers, scope.get(URL_STAGE_KEY), body)
        return Call(
            method=scope["method"],
            path=scope["path"] if is_tagged else scope["raw_path"].decode("latin-1").partition("?")[0],
            query=scope["query_string"].decode("latin-1"),
            request_id=scope[REQUEST_ID_KEY],
            tenant=scope[TENANT_KEY],
            headers=headers,
            raw_body=raw_body,
            body=body,
            tags=tags,
        )
