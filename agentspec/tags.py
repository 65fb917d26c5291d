"""The tags of one request, and their encoding as ``vllm_xargs``.

The gateway reads tags from headers and bodies, and refuses malformed ones. Engines take them as they are: the
embedded one in a ``GenerationRequest``, vLLM in ``vllm_xargs``.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, replace
from functools import lru_cache
from hashlib import blake2b

from agentspec.config import DraftConfig
from agentspec.errors import StageError
from agentspec.stages import DEFAULT_STAGE, DEFAULT_TENANT, StageKey
from agentspec.stats import MAX_STAGES
from agentspec.wire import (
    MAX_DRAFT_TOKENS,
    MAX_PREDICTION_CHARS,
    MAX_REQUEST_ID_CHARS,
    MAX_SESSION_CHARS,
    STAGE_HEADER,
    STAGE_SOURCE_HEADER,
    XARG_LEARN,
    XARG_MAX_DRAFT,
    XARG_MIN_MATCH,
    XARG_PREDICTION,
    XARG_SESSION,
    XARG_STAGE,
    XARG_SUBJECT,
    XARG_TENANT,
    XARG_TRACE,
    encode_stage,
)

logger = logging.getLogger(__name__)

SUBJECT_BYTES = 16


@dataclass(frozen=True, slots=True)
class Tags:
    """The tags of one request. ``None`` leaves a setting to the engine.

    Attributes:
        stage: stage that the output belongs to. Drafts come from its tree.
        session: name of the run or conversation, if any.
        max_draft: most draft tokens per step; 0 = no speculation.
        min_match: fewest matching tokens that a draft needs.
        learn: False keeps the output out of all trees.
        subject: :func:`subject_hash` of the person that the output may be about; empty without one.
        prediction: text that the client expects as output, if any.
        trace: id under which the decode steps are traced; None = not traced.
        stage_source: resolver that found the stage. Engines do not receive it.
    """

    stage: StageKey
    _: KW_ONLY
    session: str | None = None
    max_draft: int | None = None
    min_match: int | None = None
    learn: bool = True
    subject: bytes = b""
    prediction: str | None = None
    trace: str | None = None
    stage_source: str = "default"

    @classmethod
    def from_xargs(cls, xargs: Mapping[str, object] | None) -> Tags:
        """Return the tags in a request's ``vllm_xargs``. A malformed value counts as absent.

        A client that reaches vLLM without a gateway may send anything, and an error in the worker would end
        the engine, not only the request.
        """
        xargs = xargs or {}
        return cls(
            stage=_stage(xargs),
            session=_text(xargs.get(XARG_SESSION), MAX_SESSION_CHARS),
            max_draft=_count(xargs.get(XARG_MAX_DRAFT), 0),
            min_match=_count(xargs.get(XARG_MIN_MATCH), 1),
            learn=xargs.get(XARG_LEARN) not in (0, "0"),
            subject=_hash(xargs.get(XARG_SUBJECT)),
            prediction=_text(xargs.get(XARG_PREDICTION), MAX_PREDICTION_CHARS),
            trace=_text(xargs.get(XARG_TRACE), MAX_REQUEST_ID_CHARS),
        )

    def to_xargs(self) -> dict[str, str | int]:
        """Return the tags as ``vllm_xargs``, without those that are None. The stage is not encoded."""
        optional = {
            XARG_SESSION: self.session,
            XARG_MAX_DRAFT: self.max_draft,
            XARG_MIN_MATCH: self.min_match,
            XARG_SUBJECT: self.subject.hex() or None,
            XARG_PREDICTION: self.prediction,
            XARG_TRACE: self.trace,
        }
        return {
            XARG_STAGE: self.stage.name,
            XARG_TENANT: self.stage.tenant,
            **{key: value for key, value in optional.items() if value is not None},
            XARG_LEARN: int(self.learn),
        }

    def draft(self, server: DraftConfig) -> DraftConfig:
        """Return the request's draft settings. A request can only lower the server's limit.

        Raises:
            ConfigError: a limit is out of range, see ``DraftConfig``.
        """
        if self.max_draft is None and self.min_match is None:
            return server
        limit = server.max_tokens if self.max_draft is None else min(self.max_draft, server.max_tokens)
        min_match = server.min_match if self.min_match is None else self.min_match
        return replace(server, max_tokens=limit, min_match=min_match)

    def response_headers(self) -> list[tuple[bytes, bytes]]:
        """Return the response headers that report the resolved stage to the client."""
        return [
            (STAGE_HEADER.encode(), encode_stage(self.stage.name).encode()),
            (STAGE_SOURCE_HEADER.encode(), self.stage_source.encode()),
        ]


def subject_hash(tenant: str, subject: str) -> bytes:
    """Return what stands for a tenant's person in shared outputs: 16 bytes."""
    return blake2b(
        f"{tenant}\0{subject}".encode(), digest_size=SUBJECT_BYTES, person=b"agentspec person"
    ).digest()


def _stage(xargs: Mapping[str, object]) -> StageKey:
    tenant = _text(xargs.get(XARG_TENANT)) or DEFAULT_TENANT
    path = _text(xargs.get(XARG_STAGE)) or DEFAULT_STAGE
    try:
        return _parse(path, tenant)
    except StageError as error:
        logger.warning("a request is assigned to the stage %r: %s", DEFAULT_STAGE, error)
    tenant = tenant if tenant.isprintable() else ascii(tenant)  # still no other tenant's
    return StageKey(tenant, (DEFAULT_STAGE,))


_parse = lru_cache(MAX_STAGES)(StageKey.parse)


def _text(value: object, limit: int | None = None) -> str | None:
    if not isinstance(value, str) or not value or (limit is not None and len(value) > limit):
        return None
    return value


def _hash(value: object) -> bytes:
    try:
        return bytes.fromhex(value) if isinstance(value, str) and len(value) == 2 * SUBJECT_BYTES else b""
    except ValueError:
        return b""


def _count(value: object, least: int) -> int | None:
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 9:
        value = int(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        return None
    return min(value, MAX_DRAFT_TOKENS)
