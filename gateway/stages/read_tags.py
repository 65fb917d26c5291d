"""Reads a request's tags from its headers, URL and body: stage, session, drafting options and prediction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.datastructures import Headers

from agentspec.errors import RequestError
from agentspec.gateway.discovery.service import Discovery
from agentspec.gateway.http.context import UrlTags
from agentspec.gateway.openai.content import read_prediction
from agentspec.gateway.stages.resolver import StageHints, resolve_stage
from agentspec.gateway.stages.router_tags import is_session, router_session
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
    SUBJECT_HEADER,
    TRACE_HEADER,
    TRACE_SESSION_HEADER,
)

_SESSION_NAMES = frozenset(name.encode() for name in SESSION_HEADERS)


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
