"""Reads a request's tags from its headers, URL and body: stage, session, drafting options and prediction.

Clients that can only set a base URL have tags in the URL. ``/stages/<path>/v1/...`` names the stage of a call
and ``/workflows/<path>/v1/...`` its workflow. ``/sessions/<id>`` before either, or before ``/v1``, names the
session. Engines behind HTTP receive the tags in the body's ``vllm_xargs``. The rest of the body is forwarded
byte for byte. Client values under our prefix are removed, because a client must not choose its own tenant.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from agentspec.errors import RequestError
from agentspec.gateway.discovery.service import Discovery
from agentspec.gateway.http.api_response import encode_json
from agentspec.gateway.http.context import NO_URL_TAGS, UrlTags, ensure_context
from agentspec.gateway.openai.messages import read_prediction
from agentspec.gateway.stages.client_tags import is_session, router_session
from agentspec.gateway.stages.resolver import StageHints, resolve_stage
from agentspec.tags import Tags, subject_hash
from agentspec.wire import (
    FAIRNESS_HEADER,
    LEARN_HEADER,
    MAX_DRAFT_HEADER,
    MAX_DRAFT_TOKENS,
    MAX_SESSION_CHARS,
    MAX_SUBJECT_CHARS,
    MIN_MATCH_HEADER,
    SESSION_HEADER,
    SESSION_HEADERS,
    SESSION_URL_PREFIX,
    STAGE_URL_PREFIX,
    SUBJECT_HEADER,
    TRACE_HEADER,
    TRACE_SESSION_HEADER,
    WORKFLOW_URL_PREFIX,
    XARGS_FIELD,
    XARGS_PREFIX,
)

_SESSION_NAMES = frozenset(name.encode() for name in SESSION_HEADERS)
_PREFIXES = (STAGE_URL_PREFIX, WORKFLOW_URL_PREFIX, SESSION_URL_PREFIX)
_API = "/v1/"
_WHITESPACE = b" \t\r\n"


def read_tags(
    tenant: str,
    headers: Headers,
    url_tags: UrlTags,
    body: Mapping[str, Any],
    discovery: Discovery | None = None,
    *,
    trace: str | None = None,
) -> Tags:
    """Return the tags of a request; ``discovery`` finds the stage of one that names none.

    A request that asks for a trace gets it under the id ``trace``; None = no traces here.

    Raises:
        RequestError: a tag is malformed.
    """
    stage, source = resolve_stage(StageHints(tenant, headers, url_tags, body, discovery))
    learn = _read_int(headers, LEARN_HEADER, 0, 1)
    return Tags(
        stage=stage,
        session=_read_session(headers, url_tags.session)
        or router_session(body)
        or _session_hint(headers, body),
        max_draft=_read_int(headers, MAX_DRAFT_HEADER, 0, MAX_DRAFT_TOKENS),
        min_match=_read_int(headers, MIN_MATCH_HEADER, 1, MAX_DRAFT_TOKENS),
        learn=learn != 0,
        subject=_read_subject(headers, tenant),
        prediction=read_prediction(body),
        trace=trace if _read_int(headers, TRACE_HEADER, 0, 1) == 1 else None,
        stage_source=source,
    )


def _read_session(headers: Headers, in_url: str | None) -> str | None:
    """Return our own header's session, else the URL's, else that of another client's header."""
    sent = {name: value for name, value in reversed(headers.raw) if name in _SESSION_NAMES}
    own = sent.pop(SESSION_HEADER.encode(), b"").decode("latin-1")
    for where, value in ((f"header {SESSION_HEADER}", own), ("the URL's session", in_url)):
        if value and not is_session(value):
            raise RequestError(
                f"{where}: at most {MAX_SESSION_CHARS} printable characters, not {value!r}",
                param=SESSION_HEADER,
            )
        if value:
            return value
    for name in SESSION_HEADERS if sent else ():  # in order of precedence
        value = sent.get(name.encode(), b"").decode("latin-1")
        if is_session(value):
            return value
    return None


def _session_hint(headers: Headers, body: Mapping[str, Any]) -> str | None:
    """Return what may name a run although it serves other purposes: traces, caches, fair shares."""
    hints = (
        headers.get(TRACE_SESSION_HEADER),
        body.get("session_id"),  # vLLM's
        body.get("prompt_cache_key"),
        headers.get(FAIRNESS_HEADER),
    )
    return next((value for value in hints if is_session(value)), None)


def _read_subject(headers: Headers, tenant: str) -> bytes:
    value = headers.get(SUBJECT_HEADER)
    if value is None:
        return b""
    if not value or not value.isprintable() or len(value) > MAX_SUBJECT_CHARS:
        raise RequestError(  # without the value: it names a person
            f"header {SUBJECT_HEADER}: 1 to {MAX_SUBJECT_CHARS} printable characters", param=SUBJECT_HEADER
        )
    return subject_hash(tenant, value)


def _read_int(headers: Headers, name: str, low: int, high: int) -> int | None:
    text = headers.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 9 and low <= int(text) <= high):
        raise RequestError(f"header {name} must be an integer from {low} to {high}, not {text!r}", param=name)
    return int(text)


class UrlTagsMiddleware:
    """Strips the tags from the path; they are stored, still encoded, in the context's ``url_tags``."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, with the plain path if it had tags."""
        if scope["type"] == "http":
            scope, tags = _without_tags(scope)
            ensure_context(scope, send).url_tags = tags
        await self._app(scope, receive, send)


def _without_tags(scope: Scope) -> tuple[Scope, UrlTags]:
    """Return the scope with the plain path, and the tags; the scope itself if the path has none."""
    if not scope["path"].startswith(_PREFIXES):
        return scope, NO_URL_TAGS
    # the raw path: the decoded one does not distinguish an encoded "/v1/" from the real one
    raw = scope.get("raw_path", scope["path"].encode()).decode("latin-1").partition("?")[0]
    named, found, rest = raw.rpartition(_API)
    tags = _read(named) if found else None
    if tags is None:
        return scope, NO_URL_TAGS
    path = f"{_API}{rest}"
    return {**scope, "path": unquote(path), "raw_path": path.encode("latin-1")}, tags


def _read(named: str) -> UrlTags | None:
    """Return the tags in the part of the path before the API's; None if it is no such part."""
    session = None
    if named.startswith(SESSION_URL_PREFIX):
        session, slash, rest = named.removeprefix(SESSION_URL_PREFIX).partition("/")
        named = f"/{rest}" if slash else ""
    if not named:
        return UrlTags(session=session)
    if named.startswith(WORKFLOW_URL_PREFIX) and f"{named}/".endswith(_API):
        return None  # a client has added /v1 to a base URL that ends in it
    for prefix, name in ((STAGE_URL_PREFIX, "stage"), (WORKFLOW_URL_PREFIX, "workflow")):
        if named.startswith(prefix):
            return UrlTags(session=session, **{name: named.removeprefix(prefix)})
    return None


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
