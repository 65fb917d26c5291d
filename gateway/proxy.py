"""The upstream behind HTTP: any OpenAI-compatible server. Bytes come back untouched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import httpx
from pydantic import BaseModel, ConfigDict, Field
from starlette.datastructures import Headers

from agentspec.errors import ConfigError
from agentspec.gateway.answer_tail import AnswerTail
from agentspec.gateway.call import Call
from agentspec.gateway.engine_control import EngineControl
from agentspec.gateway.engine_http import CONNECT_TIMEOUT_S, KEEPALIVE_S, told_as_ours
from agentspec.gateway.ledger import StageLedger
from agentspec.gateway.reply import Reply
from agentspec.gateway.xargs import with_xargs
from agentspec.generation import PastOutput
from agentspec.stages import StageKey
from agentspec.stats import StageStats
from agentspec.wire import REQUEST_ID_HEADER, STAGE_HEADER, STAGE_SOURCE_HEADER, encode_stage

HOP_BY_HOP = frozenset(
    (
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    )
)
# the client's length and encodings are not the forwarded body's; id and stage are sent as we understood them
NOT_FORWARDED = HOP_BY_HOP | {
    "host",
    "content-length",
    "accept-encoding",
    "expect",
    REQUEST_ID_HEADER,
    STAGE_HEADER,
}
# ours say it instead
NOT_RETURNED = HOP_BY_HOP | {"date", "server", REQUEST_ID_HEADER, STAGE_HEADER, STAGE_SOURCE_HEADER}
HEALTH_TIMEOUT_S = 2.0


class ProxySettings(BaseModel):
    """Where the engine is and what it is sent.

    Attributes:
        url: base URL, with or without ``/v1``.
        api_key: the engine's own key; replaces the client's ``Authorization``.
        forwards_authorization: pass the client's ``Authorization`` on; False where it carries a key
            of this gateway.
        sends_xargs: put the tags into the body's ``vllm_xargs``; False for a server that refuses
            fields it does not know.
        control_token: the engine's ``$AGENTSPEC_CONTROL_TOKEN``, if it runs our plugin and has one.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: str
    api_key: str | None = Field(default=None, repr=False)
    forwards_authorization: bool = True
    sends_xargs: bool = True
    control_token: str | None = Field(default=None, repr=False)
    connect_timeout_s: float = Field(default=CONNECT_TIMEOUT_S, gt=0)
    read_timeout_s: float = Field(default=600.0, gt=0)

    @property
    def root(self) -> str:
        """The URL that ``/v1/...`` is added to. Raises ConfigError if it is no http URL."""
        try:
            parts = urlsplit(self.url)
            is_base = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError as error:
            raise ConfigError(f"bad engine URL {self.url!r}: {error}") from None
        if parts.username is not None:  # and not show it: this URL stands in logs and in errors
            raise ConfigError("an engine URL holds no user and no password")
        if not is_base or parts.query or parts.fragment:
            raise ConfigError(f"an engine URL looks like 'http://host:8000', not {self.url!r}")
        return self.url.rstrip("/").removesuffix("/v1")


class ProxyUpstream:
    """Forwards to one server by one connection pool."""

    def __init__(self, settings: ProxySettings) -> None:
        self._settings = settings
        self._root = settings.root
        self._ledger = StageLedger()
        self._control = EngineControl(self._root, settings.control_token)
        self._client = httpx.AsyncClient(
            timeout=httpx.Timeout(settings.read_timeout_s, connect=settings.connect_timeout_s, pool=None),
            limits=httpx.Limits(
                max_connections=None, max_keepalive_connections=256, keepalive_expiry=KEEPALIVE_S
            ),
            trust_env=False,
        )

    async def answer(self, call: Call, reply: Reply) -> None:
        """Forward and stream back; see :meth:`Upstream.answer`."""
        request = self._client.build_request(
            call.method,
            f"{self._root}{call.path}" + (f"?{call.query}" if call.query else ""),
            content=self._content(call),
            headers=self._call_headers(call),
        )
        stage = None if call.tags is None else call.tags.stage
        if stage is not None:
            self._ledger.count_request(stage)
        with told_as_ours(self._root):
            response = await self._client.send(request, stream=True)
            try:
                await self._send_back(response, stage, reply)
            finally:
                await response.aclose()

    async def is_healthy(self) -> bool:
        """True if the engine answers at all; not every server has a ``/health``."""
        try:
            answer = await self._client.get(f"{self._root}/health", timeout=HEALTH_TIMEOUT_S)
        except httpx.HTTPError:
            return False
        return answer.status_code < 500

    async def stats(self) -> Mapping[StageKey, StageStats]:
        """What the engine counted, if it runs our plugin; else what answers told on their way."""
        told = await self._control.stages()
        return self._ledger.stats if told is None else told

    async def evict(self, stage: StageKey) -> dict[str, Any]:
        """The engine's answer; see :meth:`Upstream.evict`."""
        return await self._control.evict(stage)

    async def warm(self, tenant: str, outputs: Sequence[PastOutput]) -> dict[str, Any]:
        """The engine's answer; see :meth:`Upstream.warm`."""
        return await self._control.warm(tenant, outputs)

    async def save(self, path: str | None) -> dict[str, Any]:
        """The engine's answer; see :meth:`Upstream.save`."""
        return await self._control.save(path)

    async def load(self, path: str | None) -> dict[str, Any]:
        """The engine's answer; see :meth:`Upstream.load`."""
        return await self._control.load(path)

    async def close(self) -> None:
        """Close the pools."""
        await self._control.close()
        await self._client.aclose()

    def _content(self, call: Call) -> bytes:
        if call.tags is None or call.body is None:
            return call.raw_body
        return with_xargs(call.raw_body, call.body, call.tags.xargs if self._settings.sends_xargs else {})

    async def _send_back(self, response: httpx.Response, stage: StageKey | None, reply: Reply) -> None:
        kind = response.headers.get("content-type", "")
        tail = AnswerTail(is_event_stream=kind.startswith("text/event-stream"))
        await reply.start(
            response.status_code,
            [(name.lower(), value) for name, value in response.headers.raw if _is_returned(name)],
        )
        async for part in response.aiter_raw():
            tail.add(part)
            await reply.write(part)
        await reply.end()
        if response.status_code == 200 and stage is not None:
            self._ledger.count_answer(stage, tail.payload())

    def _call_headers(self, call: Call) -> list[tuple[bytes, bytes]]:
        headers = [*self._headers(call.headers), (REQUEST_ID_HEADER.encode(), call.request_id.encode())]
        if call.tags is not None:  # for another gateway behind this one
            headers.append((STAGE_HEADER.encode(), encode_stage(call.tags.stage.name).encode()))
        return headers

    def _headers(self, given: Headers) -> list[tuple[bytes, bytes]]:
        dropped = set(NOT_FORWARDED)
        for value in given.getlist("connection"):
            dropped.update(name.strip().lower() for name in value.split(","))
        if self._settings.api_key or not self._settings.forwards_authorization:
            dropped.add("authorization")
        headers = [(name, value) for name, value in given.raw if name.decode("latin-1") not in dropped]
        # the bytes go back as they are, to a client we did not ask
        headers.append((b"accept-encoding", b"identity"))
        if self._settings.api_key:
            headers.append((b"authorization", f"Bearer {self._settings.api_key}".encode()))
        return headers


def _is_returned(name: bytes) -> bool:
    return name.decode("latin-1").lower() not in NOT_RETURNED
