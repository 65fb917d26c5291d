"""Request ids: the client's own if it is valid, else a new one. The response returns it as a header."""

from __future__ import annotations

import random
import re

from starlette.datastructures import Headers

from agentspec.wire import MAX_REQUEST_ID_CHARS, REQUEST_ID_HEADER

_SANE_ID = re.compile(rf"[A-Za-z0-9._:-]{{1,{MAX_REQUEST_ID_CHARS}}}")


def request_id_of(headers: Headers) -> str:
    """Return the id of a request with these headers."""
    given = headers.get(REQUEST_ID_HEADER, "")
    return given if is_request_id(given) else f"{random.getrandbits(128):032x}"


def is_request_id(text: str) -> bool:
    """Return True if ``text`` is a valid request id."""
    return _SANE_ID.fullmatch(text) is not None
