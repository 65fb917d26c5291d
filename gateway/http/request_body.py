"""Reading of a request body, within a limit, decompressed, as one JSON object."""

from __future__ import annotations

import asyncio
import io
import json
import zlib
from collections.abc import Callable
from typing import Any, NoReturn

import msgspec
from starlette.datastructures import Headers
from starlette.types import Message, Receive

from agentspec.errors import RequestError
from agentspec.gateway.errors import BodyTooLargeError, SlowBodyError, UnsupportedEncodingError
from agentspec.gateway.http.cancellation import ClientGoneError
from agentspec.gateway.settings import GatewaySettings

try:
    import zstandard
except ImportError:  # of the extra "corpus"
    zstandard = None  # type: ignore[assignment]

MAX_JSON_DEPTH = (
    128  # json's own limit depends on the stack: a body could pass here and fail when it is encoded
)
_BEFORE_OBJECT = b" \t\r\n\0\xef\xbb\xbf\xfe\xff"  # white space; NUL and byte order marks, as in UTF-16
HEADER = "content-encoding"
MAX_ZSTD_WINDOW_BYTES = 8 << 20  # RFC 9659: what a decoder of HTTP has to support
GZIP, ZLIB, RAW_DEFLATE = 16 + zlib.MAX_WBITS, zlib.MAX_WBITS, -zlib.MAX_WBITS


async def read_body(
    receive: Receive, headers: Headers, limits: GatewaySettings, *, num_dropped: int = 0
) -> bytes:
    """Return the whole body, decoded if it is compressed.

    Args:
        num_dropped: bytes beyond the limit that are read before the body is refused. Our own server needs
            none: it reads on after a response. Others close, and a client that still sends may lose it.

    Raises:
        BodyTooLargeError: it has too many bytes, as sent or decoded.
        UnsupportedEncodingError: it is compressed in a way that is unknown here.
        RequestError: it is damaged.
        SlowBodyError: it did not arrive in time.
        ClientGoneError: the client disconnected while sending.
    """
    raw = await _read_raw(receive, limits, num_dropped)
    if not is_encoded(headers):  # nearly always
        return raw
    return await asyncio.to_thread(decoded, raw, headers, limits.body_limit_bytes)


async def _read_raw(receive: Receive, limits: GatewaySettings, num_dropped: int) -> bytes:
    try:
        async with asyncio.timeout(limits.body_s):
            message = await receive()
            if message["type"] == "http.request" and not message.get("more_body", False):  # nearly always
                return _within(message.get("body", b""), limits.body_limit_bytes)
            return await _read_parts(message, receive, limits.body_limit_bytes, num_dropped)
    except TimeoutError:
        raise SlowBodyError(f"the body did not arrive within {limits.body_s:g} s") from None


async def _read_parts(message: Message, receive: Receive, limit_bytes: int, num_dropped: int) -> bytes:
    parts, num_bytes = [], 0
    while True:
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        part = message.get("body", b"")
        num_bytes += len(part)
        if num_bytes <= limit_bytes:
            parts.append(part)
        if not message.get("more_body", False) or num_bytes > limit_bytes + num_dropped:
            break
        message = await receive()
    if num_bytes > limit_bytes:
        raise _too_large(limit_bytes)
    return b"".join(parts)


def _within(body: bytes, limit_bytes: int) -> bytes:
    if len(body) > limit_bytes:
        raise _too_large(limit_bytes)
    return body


def _too_large(limit_bytes: int) -> BodyTooLargeError:
    return BodyTooLargeError(f"the body has more than {limit_bytes} bytes")


def parse_body(raw: bytes) -> dict[str, Any]:
    """Return the JSON object in ``raw``. Raises RequestError if it is not one."""
    try:
        body = _decode(raw)
    except (ValueError, RecursionError):  # most often not JSON; but UTF-16 is legal too, and 1e999
        body = _parse_slowly(raw)
    if not isinstance(body, dict):
        raise RequestError(f"the body must be a JSON object, not {type(body).__name__}", code="invalid_json")
    if raw.count(b"{") + raw.count(b"[") > MAX_JSON_DEPTH and _is_deep(body):
        raise RequestError(f"the body is nested more than {MAX_JSON_DEPTH} deep", code="invalid_json")
    return body


def _parse_slowly(raw: bytes) -> Any:
    """Parse JSON in any of its encodings, or raise RequestError with the reason."""
    try:
        text = raw.decode(json.detect_encoding(raw))  # strictly: json would let half a surrogate pair pass
        body = _DECODER.decode(text)
        if "\\u" in text:  # an escaped half of a surrogate pair is legal JSON, but no text
            json.dumps(body, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise RequestError("the body has half of a surrogate pair", code="invalid_json") from None
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the body is not valid JSON: {error}", code="invalid_json") from None
    return body


def guess_body(raw: bytes) -> dict[str, Any] | None:
    """Return the JSON object in a body that need not hold one; None if it does not."""
    if raw.lstrip(_BEFORE_OBJECT)[:1] != b"{":
        return None
    try:
        return parse_body(raw)
    except RequestError:
        return None


def _is_deep(body: dict[str, Any]) -> bool:
    """Return True if ``body`` exceeds ``MAX_JSON_DEPTH``. Works level by level without recursion.

    Takes a fraction of the time of parsing.
    """
    level: list[Any] = [body]
    for _ in range(MAX_JSON_DEPTH):
        below = []
        for one in level:
            for member in one.values() if type(one) is dict else one:
                if type(member) is dict or type(member) is list:
                    below.append(member)
        if not below:
            return False
        level = below
    return True


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a JSON number")


_decode = msgspec.json.Decoder().decode
_DECODER = json.JSONDecoder(parse_constant=_refuse)


def is_encoded(headers: Headers) -> bool:
    """True if a body with these headers has to be decoded."""
    return headers.get(HEADER, "").strip().lower() not in ("", "identity")


def decoded(raw: bytes, headers: Headers, limit_bytes: int) -> bytes:
    """Return the decoded body. May take a while: call it outside of the event loop.

    Raises:
        UnsupportedEncodingError: its encoding is unknown, or there are several.
        BodyTooLargeError: it decodes to more than ``limit_bytes``. Not more than that is decoded.
        RequestError: it is damaged or incomplete.
    """
    name = ", ".join(headers.getlist(HEADER)).strip().lower()
    decode = DECODERS.get(name)
    if decode is None:
        raise UnsupportedEncodingError(
            name, tuple(dict.fromkeys(known.removeprefix("x-") for known in DECODERS))
        )
    try:
        body = decode(raw, limit_bytes + 1)
    except DAMAGED as error:
        raise RequestError(f"the body is no valid {name}: {error}", code="invalid_encoding") from None
    if len(body) > limit_bytes:
        raise BodyTooLargeError(f"the body has more than {limit_bytes} bytes when decoded")
    return body


def _inflate(raw: bytes, num_bytes: int, window: int) -> bytes:
    """Decode gzip or deflate, of one or more members, up to ``num_bytes``."""
    parts: list[bytes] = []
    while raw and num_bytes > 0:
        stream = zlib.decompressobj(window)
        parts.append(stream.decompress(raw, num_bytes))
        num_bytes -= len(parts[-1])
        if not stream.eof and num_bytes > 0:
            raise EOFError("it is incomplete")
        raw = stream.unused_data
    return b"".join(parts)


def _deflate(raw: bytes, num_bytes: int) -> bytes:
    """Decode deflate, which some clients send without its zlib header."""
    is_zlib = len(raw) > 1 and raw[0] & 0x0F == 8 and (raw[0] << 8 | raw[1]) % 31 == 0
    return _inflate(raw, num_bytes, ZLIB if is_zlib else RAW_DEFLATE)


def _zstd(raw: bytes, num_bytes: int) -> bytes:
    decoder = zstandard.ZstdDecompressor(max_window_size=MAX_ZSTD_WINDOW_BYTES)
    with decoder.stream_reader(io.BytesIO(raw), read_across_frames=True) as stream:
        return stream.read(num_bytes)


DECODERS: dict[str, Callable[[bytes, int], bytes]] = {
    "gzip": lambda raw, num_bytes: _inflate(raw, num_bytes, GZIP),
    "x-gzip": lambda raw, num_bytes: _inflate(raw, num_bytes, GZIP),
    "deflate": _deflate,
    **({} if zstandard is None else {"zstd": _zstd}),
}
DAMAGED: tuple[type[Exception], ...] = (
    zlib.error,
    EOFError,
    *(() if zstandard is None else (zstandard.ZstdError,)),
)
