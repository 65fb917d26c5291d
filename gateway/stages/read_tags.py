"""What AgentSpec itself wants to know of a request: stage, session, how to draft and what to expect."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from starlette.datastructures import Headers

from agentspec.errors import RequestError
from agentspec.gateway.discovery.service import Discovery
from agentspec.gateway.stages.prediction import read_prediction
from agentspec.gateway.stages.resolver import Signs, resolve_stage
from agentspec.stages import StageKey
from agentspec.wire import (
    LEARN_HEADER,
    MAX_DRAFT_HEADER,
    MAX_DRAFT_TOKENS,
    MAX_SESSION_CHARS,
    MIN_MATCH_HEADER,
    SESSION_HEADER,
    SESSION_HEADERS,
    STAGE_HEADER,
    STAGE_SOURCE_HEADER,
    TRACE_HEADER,
    encode_stage,
    to_xargs,
)


@dataclass(frozen=True, slots=True)
class Tags:
    """The tags of one request. ``None`` leaves a setting to the engine."""

    stage: StageKey
    stage_source: str = "default"
    session: str | None = None
    max_draft: int | None = None
    min_match: int | None = None
    learn: bool = True
    prediction: str | None = None
    is_traced: bool = False

    @property
    def answer_headers(self) -> list[tuple[bytes, bytes]]:
        """The headers that tell the client how its stage was understood."""
        return [
            (STAGE_HEADER.encode(), encode_stage(self.stage.name).encode()),
            (STAGE_SOURCE_HEADER.encode(), self.stage_source.encode()),
        ]

    @property
    def xargs(self) -> dict[str, str | int]:
        """The same tags for an engine behind HTTP, in ``vllm_xargs``."""
        return to_xargs(
            self.stage,
            session=self.session,
            max_draft=self.max_draft,
            min_match=self.min_match,
            learn=self.learn,
            prediction=self.prediction,
        )


def read_tags(
    tenant: str,
    headers: Headers,
    url_stage: str | None,
    body: Mapping[str, Any],
    discovery: Discovery | None = None,
) -> Tags:
    """Everything a request says about itself; ``discovery`` finds the stage of one that says nothing.

    Raises:
        RequestError: a tag is malformed.
    """
    stage, source = resolve_stage(Signs(tenant, headers, url_stage, body, discovery))
    learn = _read_int(headers, LEARN_HEADER, 0, 1)
    return Tags(
        stage=stage,
        stage_source=source,
        session=_read_session(headers),
        max_draft=_read_int(headers, MAX_DRAFT_HEADER, 0, MAX_DRAFT_TOKENS),
        min_match=_read_int(headers, MIN_MATCH_HEADER, 1, MAX_DRAFT_TOKENS),
        learn=learn != 0,
        prediction=read_prediction(body),
        is_traced=_read_int(headers, TRACE_HEADER, 0, 1) == 1,
    )


def _read_session(headers: Headers) -> str | None:
    for name in SESSION_HEADERS:
        value = headers.get(name, "")
        if value and value.isprintable() and len(value) <= MAX_SESSION_CHARS:
            return value
        if value and name == SESSION_HEADER:
            raise RequestError(
                f"header {name}: at most {MAX_SESSION_CHARS} printable characters, not {value!r}",
                param=name,
            )
    return None


def _read_int(headers: Headers, name: str, low: int, high: int) -> int | None:
    text = headers.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 9 and low <= int(text) <= high):
        raise RequestError(f"header {name} must be an integer from {low} to {high}, not {text!r}", param=name)
    return int(text)
