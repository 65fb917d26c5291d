"""Forwarding of requests and response headers between client and engine, unchanged but for a few headers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from agentspec.gateway.call import ApiCall
from agentspec.gateway.http.api_response import BODILESS_STATUSES, RawHeader
from agentspec.gateway.settings import UpstreamSettings
from agentspec.gateway.stages.read_tags import with_xargs
from agentspec.gateway.upstreams.connection_pool import UpstreamRequest
from agentspec.gateway.upstreams.routing import RANK_HEADER
from agentspec.wire import AFFINITY_HEADER, REQUEST_ID_HEADER, STAGE_HEADER, STAGE_SOURCE_HEADER, encode_stage

HOP_BY_HOP = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    )
)
# the forwarded body is decoded, so length and encodings differ; the gateway writes id, stage and affinity
NOT_FORWARDED = HOP_BY_HOP | {
    b"host",
    b"content-encoding",
    b"content-length",
    b"accept-encoding",
    b"expect",
    REQUEST_ID_HEADER.encode(),
    STAGE_HEADER.encode(),
    AFFINITY_HEADER.encode(),
}
# replaced if the gateway records a span of its own, between those of client and engine
TRACE_HEADERS = frozenset((b"traceparent", b"tracestate"))
# the gateway's CORS settings replace the engine's: vLLM allows all origins by default
CORS_HEADERS = frozenset(
    b"access-control-" + name
    for name in (
        *(
            b"allow-origin",
            b"allow-credentials",
            b"allow-headers",
            b"allow-methods",
            b"allow-private-network",
        ),
        *(b"expose-headers", b"max-age"),
    )
)
# the gateway writes its own, or drops them
NOT_RETURNED = HOP_BY_HOP | {
    b"date",
    b"server",
    REQUEST_ID_HEADER.encode(),
    STAGE_HEADER.encode(),
    STAGE_SOURCE_HEADER.encode(),
    *CORS_HEADERS,
}


class Forwarding:
    """A writer of requests for one engine.

    Args:
        authority: host and port, for the ``Host`` header.
        prefix: path of the engine's base URL.
        forwards_authorization: pass the client's ``Authorization`` on, unless the engine has a key.
    """

    def __init__(
        self, authority: str, prefix: str, settings: UpstreamSettings, *, forwards_authorization: bool
    ) -> None:
        self._prefix = prefix
        self._sends_xargs = settings.sends_xargs
        # response bodies are forwarded unchanged, to a client that may not support other encodings
        lines = [f"host: {authority}", "accept-encoding: identity"]
        self._affinity_header = settings.affinity_header
        self._dropped = NOT_FORWARDED | {settings.affinity_header.encode()}
        if settings.api_key:
            lines.append(f"authorization: Bearer {settings.api_key}")
        if settings.api_key or not forwards_authorization:
            self._dropped |= {b"authorization", b"x-api-key"}
        self._own_lines = "\r\n".join(lines).encode("latin-1")

    def request(self, call: ApiCall, rank: str | None = None, affinity: str | None = None) -> UpstreamRequest:
        """Encode ``call`` for the engine, or for one of its data-parallel ranks.

        Args:
            affinity: value of the affinity header, for a router before the engine.

        Raises:
            RequestError: its ``vllm_xargs`` is not an object.
        """
        body = self._body(call)
        target = f"{self._prefix}{call.path}" + (f"?{call.query}" if call.query else "")
        lines = [f"{call.method} {target} HTTP/1.1".encode("latin-1"), self._own_lines]
        traced = call.record.trace_headers
        dropped = self._dropped | _named_by_connection(call.headers.raw)
        if traced:
            dropped |= TRACE_HEADERS
        lines += [b"%b: %b" % header for header in call.headers.raw if header[0] not in dropped]
        lines += [b"%b: %b" % header for header in traced.items()]
        lines.append(f"{REQUEST_ID_HEADER}: {call.request_id}".encode())
        if call.tags is not None:  # for another gateway behind this one
            lines.append(f"{STAGE_HEADER}: {encode_stage(call.tags.stage.name)}".encode())
        if rank is not None:
            lines.append(f"{RANK_HEADER}: {rank}".encode())
        if affinity is not None:
            lines.append(f"{self._affinity_header}: {affinity}".encode())
        if body or call.method not in ("GET", "HEAD"):
            lines.append(b"content-length: %d" % len(body))
        return UpstreamRequest(b"\r\n".join([*lines, b"", b""]), body, is_head=call.method == "HEAD")

    def own_request(self, path: str) -> UpstreamRequest:
        """Encode a GET of the gateway itself, without a client's call."""
        line = f"GET {self._prefix}{path} HTTP/1.1".encode("latin-1")
        return UpstreamRequest(b"\r\n".join([line, self._own_lines, b"", b""]), b"")

    def _body(self, call: ApiCall) -> bytes:
        if call.body is None:
            return call.raw_body
        return with_xargs(call.raw_body, call.body, self._xargs(call))

    def _xargs(self, call: ApiCall) -> dict[str, str | int]:
        if call.tags is None or not self._sends_xargs:
            return {}
        return call.tags.to_xargs()


def returned(status: int, headers: Sequence[RawHeader]) -> list[RawHeader]:
    """Return the response headers to be sent to the client."""
    dropped = NOT_RETURNED | _named_by_connection(headers)
    if status in BODILESS_STATUSES:
        dropped |= {b"content-length"}  # no body follows
    lowered = ((name.lower(), value) for name, value in headers)
    return [header for header in lowered if header[0] not in dropped]


def _named_by_connection(headers: Iterable[RawHeader]) -> frozenset[bytes]:
    """Return the names of the hop-by-hop headers that ``Connection`` lists."""
    values = [value for name, value in headers if name.lower() == b"connection"]
    return frozenset(name.strip().lower() for value in values for name in value.split(b","))
