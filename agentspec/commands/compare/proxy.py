"""A proxy before the gateway for one run of a program: it adds headers and records calls and answers."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "HEAD"]
OF_THE_HOP = frozenset(
    "accept-encoding connection content-length host keep-alive te trailer transfer-encoding upgrade".split()
)


@dataclass(frozen=True, slots=True)
class Call:
    """One POST of the program.

    Attributes:
        path: without the base URL's tags: ``/v1/chat/completions``.
        body: the request's.
        status: HTTP status; 0 if the gateway gave no answer.
        answer: body of the answer, up to where the program stopped reading.
        seconds: from the request to the end of the answer.
    """

    path: str
    body: bytes
    status: int
    answer: bytes
    seconds: float


class RecordingProxy:
    """Forwards requests to ``root`` and records the POSTs.

    Args:
        root: the gateway's URL, without ``/v1``.
        headers: added to every request, in place of the program's own of these names; lower case.
    """

    def __init__(self, root: str, headers: Mapping[str, str]) -> None:
        self.calls: list[Call] = []
        self._root = root
        self._headers = headers
        self._client: httpx.AsyncClient

    def app(self) -> Starlette:
        """Return the ASGI application."""
        return Starlette(
            routes=[Route("/{path:path}", self._forward, methods=METHODS)], lifespan=self._lifespan
        )

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(timeout=None, limits=limits, trust_env=False) as self._client:
            yield

    async def _forward(self, request: Request) -> Response:
        began_s = time.perf_counter()
        body = await request.body()
        # the raw path: a tag in it is percent-encoded
        target = self._root + request.scope["raw_path"].decode("latin-1").partition("?")[0]
        url = f"{target}?{request.url.query}" if request.url.query else target
        headers = {**_passed_on(request.headers.items()), **self._headers}
        asked = self._client.build_request(request.method, url, headers=headers, content=body)
        asked.headers["accept-encoding"] = "identity"  # the answer is read here
        try:
            answer = await self._client.send(asked, stream=True)
        except httpx.HTTPError as error:
            self._record(request, body, 0, b"", began_s)
            return PlainTextResponse(f"no answer from {self._root}: {error}", 502)

        async def content() -> AsyncIterator[bytes]:
            parts: list[bytes] = []
            try:
                async for part in answer.aiter_raw():
                    parts.append(part)
                    yield part
            finally:
                self._record(request, body, answer.status_code, b"".join(parts), began_s)
                await answer.aclose()

        return StreamingResponse(content(), answer.status_code, _passed_on(answer.headers.items()))

    def _record(self, request: Request, body: bytes, status: int, answer: bytes, began_s: float) -> None:
        if request.method == "POST":
            _, slash, rest = request.url.path.rpartition("/v1/")
            path = f"/v1/{rest}" if slash else request.url.path
            self.calls.append(Call(path, body, status, answer, time.perf_counter() - began_s))


@contextmanager
def recording(root: str, headers: Mapping[str, str]) -> Iterator[tuple[str, list[Call]]]:
    """Yield the root URL of a proxy before the gateway at ``root``, and the calls made through it so far."""
    proxy = RecordingProxy(root, headers)
    config = uvicorn.Config(proxy.app(), log_level="error", lifespan="on", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(
            target=lambda: asyncio.run(server.serve([listening])), name="agentspec-compare", daemon=True
        )
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}", proxy.calls
        finally:
            server.should_exit = True
            thread.join()


def is_sampled(body: bytes) -> bool:
    """Return True if two calls with this body may get different answers: sampled, without a seed."""
    fields = _object(body)
    return fields.get("temperature") != 0 and fields.get("seed") is None


def canonical(body: bytes) -> str:
    """Return a body in a form that is equal for equal requests, streamed or not."""
    fields = _object(body)
    for name in ("stream", "stream_options"):
        fields.pop(name, None)
    return json.dumps(fields, sort_keys=True) if fields else body.decode("utf-8", "replace")


def _object(body: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(body)
    except ValueError:
        return {}
    return fields if isinstance(fields, dict) else {}


def _passed_on(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    return {name: value for name, value in headers if name.lower() not in OF_THE_HOP}
