"""``POST /v1/chat/completions`` and ``/v1/completions``, whatever upstream answers them."""

from __future__ import annotations

import logging

from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from agentspec.gateway.auth import TENANT_KEY
from agentspec.gateway.drain import Drain
from agentspec.gateway.lifeline import ClientGoneError, run_while_connected
from agentspec.gateway.reply import Reply
from agentspec.gateway.request_body import parse_body, read_body
from agentspec.gateway.request_id import REQUEST_ID_KEY
from agentspec.gateway.settings import GatewaySettings
from agentspec.gateway.tags import read_tags
from agentspec.gateway.upstream import Call, Endpoint, Upstream
from agentspec.gateway.url_stage import URL_STAGE_KEY

logger = logging.getLogger("agentspec.gateway")


class Completions:
    """One generating endpoint, as an ASGI application."""

    def __init__(
        self, endpoint: Endpoint, upstream: Upstream, settings: GatewaySettings, drain: Drain
    ) -> None:
        self._endpoint = endpoint
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
        reply.headers.extend(call.tags.answer_headers)
        await run_while_connected(self._upstream.complete(call, reply), receive)

    async def _read(self, scope: Scope, receive: Receive) -> Call:
        headers = Headers(scope=scope)
        raw_body = await read_body(receive, self._settings.body_limit_bytes)
        body = parse_body(raw_body)
        return Call(
            endpoint=self._endpoint,
            request_id=scope[REQUEST_ID_KEY],
            headers=headers,
            raw_body=raw_body,
            body=body,
            tags=read_tags(scope[TENANT_KEY], headers, scope.get(URL_STAGE_KEY), body),
        )
