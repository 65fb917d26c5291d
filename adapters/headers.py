"""The headers that tag a call, for any client that can send headers. Depends only on this package."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import quote

from agentspec.errors import ConfigError
from agentspec.stages import StageKey
from agentspec.wire import (
    LEARN_HEADER,
    MAX_DRAFT_HEADER,
    MAX_DRAFT_TOKENS,
    MAX_SESSION_CHARS,
    SESSION_HEADER,
    STAGE_HEADER,
    WORKFLOW_HEADER,
    decode_stage,
    encode_stage,
)

MANY_STAGES = 1024  # number of stage headers in the cache


def agentspec_headers(
    stage: str | None,
    session: str | None = None,
    *,
    workflow: str | None = None,
    max_draft: int | None = None,
    learn: bool | None = None,
) -> dict[str, str]:
    """Return the headers that tag one call.

    Args:
        stage: the calling role or step, a path of 1 to 8 segments: ``"agentic_sql/extract"``; None = the
            gateway infers it.
        session: one run of the workflow; calls of one session draft for each other.
        workflow: prefix of the stage, also of an inferred one.
        max_draft: maximum draft tokens per step, 0 = no speculation for this call.
        learn: False keeps this call's output out of the stage's tree.

    Raises:
        StageError: ``stage`` or ``workflow`` is malformed, or their combination is too long.
        ConfigError: ``max_draft`` is out of range, or ``session`` does not fit a header.
    """
    headers = {}
    if stage is not None:
        headers[STAGE_HEADER] = _encoded_stage(f"{workflow}/{stage}" if workflow is not None else stage)
    elif workflow is not None:
        headers[WORKFLOW_HEADER] = _encoded_stage(workflow)
    if session is not None:
        headers[SESSION_HEADER] = _encoded(session)
    if max_draft is not None:
        if not 0 <= max_draft <= MAX_DRAFT_TOKENS:
            raise ConfigError(f"max_draft must be between 0 and {MAX_DRAFT_TOKENS}, not {max_draft!r}")
        headers[MAX_DRAFT_HEADER] = str(max_draft)
    if learn is not None:
        headers[LEARN_HEADER] = str(int(learn))
    return headers


class Tag(str):
    """A header value set by an adapter. Values set by users are plain ``str`` and stay."""

    __slots__ = ()


def is_untagged(by_hand: Mapping[str, Any]) -> bool:
    """Return True if the stage header is explicitly omitted (``openai``'s ``Omit``); names are lower case."""
    return not isinstance(by_hand.get(STAGE_HEADER, ""), str | bytes)


def lacking(tags: Mapping[str, str], *given: Mapping[str, Any] | None) -> dict[str, str]:
    """Return the tags that explicit headers lack; empty if the stage header is explicitly omitted."""
    by_hand = {name.lower(): value for headers in given if headers for name, value in headers.items()}
    if is_untagged(by_hand):
        return {}
    return {name: value for name, value in tags.items() if name not in by_hand}


@lru_cache(maxsize=MANY_STAGES)
def _encoded_stage(stage: str) -> str:
    encoded = encode_stage(StageKey.parse(stage).name)
    decode_stage(encoded)  # raises if the encoded form is too long for a header
    return encoded


def is_session(text: str) -> bool:
    """Return True if the session fits a header."""
    try:
        _encoded(text)
    except ConfigError:
        return False
    return True


def _encoded(session: str) -> str:
    try:
        encoded = quote(session, safe="")
    except UnicodeEncodeError:
        raise ConfigError("a session is text that UTF-8 can encode, this one has a lone surrogate") from None
    if not 1 <= len(encoded) <= MAX_SESSION_CHARS:
        raise ConfigError(
            f"a session has 1 to {MAX_SESSION_CHARS} characters once percent-encoded, not {len(encoded)}"
        )
    return encoded
