"""Decoding of compressed request bodies, within the limit on the size of a body."""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable

from starlette.datastructures import Headers

from agentspec.errors import RequestError
from agentspec.gateway.errors import BodyTooLargeError, UnsupportedEncodingError

try:
    import zstandard
except ImportError:  # of the extra "corpus"
    zstandard = None  # type: ignore[assignment]

HEADER = "content-encoding"
MAX_ZSTD_WINDOW_BYTES = 8 << 20  # RFC 9659: what a decoder of HTTP has to support
GZIP, ZLIB, RAW_DEFLATE = 16 + zlib.MAX_WBITS, zlib.MAX_WBITS, -zlib.MAX_WBITS


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
