"""The gateway's own facts about one request, kept in the ASGI scope: id, headers, sender, tags of the URL."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field
from typing import NamedTuple

from starlette.datastructures import Headers
from starlette.types import Scope, Send

from agentspec.gateway.call import CallLog, Principal
from agentspec.gateway.http.api_response import AsgiResponseWriter, ResponseWriter
from agentspec.wire import MAX_REQUEST_ID_CHARS, REQUEST_ID_HEADER

_SANE_ID = re.compile(rf"[A-Za-z0-9._:-]{{1,{MAX_REQUEST_ID_CHARS}}}")
_KEY = "agentspec.context"


class RequestHeaders(Headers):
    """Headers with a lookup table. Starlette's class scans a list each time, and tags need a dozen names.

    If a name occurs several times, the first header counts; ``getlist`` and ``raw`` have all of them.
    """

    def __init__(self, scope: Scope) -> None:
        super().__init__(scope=scope)
        self._first: dict[str, str] = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(scope["headers"])
        }

    def __getitem__(self, key: str) -> str:
        return self._first[key.lower()]

    def get(self, key: str, default: str | None = None) -> str | None:  # type: ignore[override]
        """Return the first header of this name."""
        return self._first.get(key.lower(), default)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and key.lower() in self._first


def request_id_of(headers: Headers) -> str:
    """Return the id of a request with these headers."""
    given = headers.get(REQUEST_ID_HEADER, "")
    return given if is_request_id(given) else f"{random.getrandbits(128):032x}"


def is_request_id(text: str) -> bool:
    """Return True if ``text`` is a valid request id."""
    return _SANE_ID.fullmatch(text) is not None


class UrlTags(NamedTuple):
    """The tags in a request's URL, still percent-encoded; None = not there."""

    stage: str | None = None
    workflow: str | None = None
    session: str | None = None


NO_URL_TAGS = UrlTags()


@dataclass(slots=True, eq=False, repr=False)
class RequestContext:
    """The state that middlewares and handlers of one request share.

    ``principal`` and ``tenant`` have no value until the request is authenticated. Reading them earlier raises
    AttributeError, so that a route without authentication fails instead of serving all tenants.

    Attributes:
        headers: the request's headers, parsed once.
        writer: writes the response.
        request_id: the client's own id if it is valid, else a new one.
        record: facts for the log and the span; each layer adds its own.
        url_tags: stage, workflow and session in the URL.
        principal: the sender.
        tenant: the tenant with the data that the request concerns; None = all of them, for an operator.
    """

    headers: RequestHeaders
    writer: ResponseWriter
    request_id: str
    record: CallLog
    url_tags: UrlTags = NO_URL_TAGS
    principal: Principal = field(init=False)
    tenant: str | None = field(init=False)


def open_context(scope: Scope, writer: ResponseWriter) -> RequestContext:
    """Create the context of the request in ``scope`` and return it."""
    headers = RequestHeaders(scope)
    context = scope[_KEY] = RequestContext(headers, writer, request_id_of(headers), CallLog())
    return context


def ensure_context(scope: Scope, send: Send) -> RequestContext:
    """Return the request's context, for middlewares, each of which may be the outermost one.

    Our own server creates it. Behind another server the first middleware does.
    """
    known: RequestContext | None = scope.get(_KEY)
    return open_context(scope, AsgiResponseWriter(send)) if known is None else known


def context_of(scope: Scope) -> RequestContext:
    """Return the request's context. Raises KeyError if no middleware created it."""
    context: RequestContext = scope[_KEY]
    return context


def close_context(scope: Scope) -> None:
    """Remove the context at the end of the request; else a reference cycle with the server remains."""
    del scope[_KEY]
