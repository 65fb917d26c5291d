"""Every request has an id: the client's own if it is sane, else a new one. It comes back as a header."""

from __future__ import annotations

import random
import re

from starlette.datastructures import Headers

from agentspec.wire import MAX_REQUEST_ID_CHARS, REQUEST_ID_HEADER

REQUEST_ID_KEY = "agentspec.request_id"
_SANE_ID = re.compile(rf"[A-Za-z0-9._:-]{{1,{MAX_REQUEST_ID_CHARS}}}")


def request_id_of(headers: Headers) -> str:
    """The id of a request with these headers."""
    given = headers.get(REQUEST_ID_HEADER, "")
    return given if is_request_id(given) else f"{random.getrandbits(128):032x}"


def is_request_id(text: str) -> bool:
    """A request may be called so."""
    return _SANE_ID.fullmatch(text) is not None
