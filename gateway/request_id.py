"""Every request has an id: the client's own if it is sane, else a new one. It comes back as a header."""

from __future__ import annotations

import os
import re

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agentspec.wire import REQUEST_ID_HEADER

REQUEST_ID_KEY = "agentspec.request_id"
_SANE_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


class RequestId:
    """Puts the id into ``scope[REQUEST_ID_KEY]`` and on the answer, whatever that is."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Name the request, pass it on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get(REQUEST_ID_HEADER, "")
        request_id = given if _SANE_ID.fullmatch(given) else os.urandom(16).hex()
        header = (REQUEST_ID_HEADER.encode(), request_id.encode())

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), header]}
            await send(message)

        await self._app({**scope, REQUEST_ID_KEY: request_id}, receive, send_with_id)
