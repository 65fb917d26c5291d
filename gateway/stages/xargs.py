"""``vllm_xargs``: the field of the body that carries the tags to an engine behind HTTP.

The rest of the body is forwarded byte for byte. Client values under our prefix are removed, because a client
must not choose its own tenant.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentspec.errors import RequestError
from agentspec.gateway.http.api_response import encode_json
from agentspec.wire import XARGS_FIELD, XARGS_PREFIX

_WHITESPACE = b" \t\r\n"


def with_xargs(raw: bytes, body: Mapping[str, Any], xargs: Mapping[str, str | int]) -> bytes:
    """Return ``raw`` with our keys set to ``xargs`` and the client's other keys kept.

    ``raw`` parses to ``body``. Empty ``xargs`` only remove ours. O(len(raw)). Raises RequestError if the
    client's ``vllm_xargs`` is not an object.
    """
    if XARGS_FIELD not in body:
        return _spliced(raw, body, xargs) if xargs else raw
    given = body[XARGS_FIELD]
    if given is not None and not isinstance(given, dict):
        raise RequestError(f"{XARGS_FIELD} must be an object, not {given!r}", param=XARGS_FIELD)
    kept = {key: value for key, value in (given or {}).items() if not key.startswith(XARGS_PREFIX)}
    return encode_json({**body, XARGS_FIELD: {**kept, **xargs}})


def _spliced(raw: bytes, body: Mapping[str, Any], xargs: Mapping[str, str | int]) -> bytes:
    start = raw.lstrip(_WHITESPACE)
    if start[:1] != b"{" or b"\0" in start[:4]:  # UTF-16, UTF-32 or a byte order mark: legal, and rare
        return encode_json({**body, XARGS_FIELD: dict(xargs)})
    comma = b"," if body else b""
    return b'{"' + XARGS_FIELD.encode() + b'":' + encode_json(dict(xargs)) + comma + start[1:]
