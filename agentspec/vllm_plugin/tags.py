"""Tags of a request in ``vllm_xargs``, as the worker reads them: stage, session, draft limits.

The gateway has checked them. A client that reaches vLLM without a gateway may send anything. A malformed
value counts as absent, because an error here would end the engine, not only the request.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import sha256

from agentspec.config import DraftConfig
from agentspec.errors import StageError
from agentspec.stages import DEFAULT_STAGE, DEFAULT_TENANT, MAX_PATH_CHARS, StageKey
from agentspec.stats import MAX_STAGES
from agentspec.wire import (
    MAX_DRAFT_TOKENS,
    MAX_PREDICTION_CHARS,
    MAX_REQUEST_ID_CHARS,
    MAX_SESSION_CHARS,
    XARG_LEARN,
    XARG_MAX_DRAFT,
    XARG_MIN_MATCH,
    XARG_PREDICTION,
    XARG_SESSION,
    XARG_STAGE,
    XARG_TENANT,
    XARG_TRACE,
)

logger = logging.getLogger(__name__)

NO_WORKFLOW = "-"
_WALL = "\N{SYMBOL FOR UNIT SEPARATOR}"


@dataclass(frozen=True, slots=True)
class RequestTags:
    """The tags of one request.

    Attributes:
        stage: stage under which it is counted and shown.
        adapter: name of the LoRA adapter; None = the model itself.
        max_draft, min_match: draft limits; None = the server's settings.
        prediction: text that the client expects, if any.
        trace: id under which its decode steps are traced; None = not traced.
    """

    stage: StageKey
    adapter: str | None = None
    session: str | None = None
    max_draft: int | None = None
    min_match: int | None = None
    learn: bool = True
    prediction: str | None = None
    trace: str | None = None

    @classmethod
    def read(cls, xargs: Mapping[str, object] | None, adapter: str | None = None) -> RequestTags:
        """Return the tags in a request's ``SamplingParams.extra_args``."""
        xargs = xargs or {}
        return cls(
            stage=_stage(xargs),
            adapter=adapter,
            session=_text(xargs.get(XARG_SESSION), MAX_SESSION_CHARS),
            max_draft=_count(xargs.get(XARG_MAX_DRAFT), 0),
            min_match=_count(xargs.get(XARG_MIN_MATCH), 1),
            learn=xargs.get(XARG_LEARN) not in (0, "0"),
            prediction=_text(xargs.get(XARG_PREDICTION), MAX_PREDICTION_CHARS),
            trace=_text(xargs.get(XARG_TRACE), MAX_REQUEST_ID_CHARS),
        )

    @property
    def trees(self) -> StageKey:
        """The forest's key for its trees: an adapter's outputs are those of another model."""
        return adapted(self.stage, self.adapter)

    def draft(self, server: DraftConfig) -> DraftConfig:
        """Return its draft settings. A request can only lower the server's limit."""
        if self.max_draft is None and self.min_match is None:
            return server
        limit = server.max_tokens if self.max_draft is None else min(self.max_draft, server.max_tokens)
        return replace(server, max_tokens=limit, min_match=self.min_match or server.min_match)


@lru_cache(MAX_STAGES)
def adapted(stage: StageKey, adapter: str | None) -> StageKey:
    """Return the forest's key for a stage: in a tenant of its adapter, and in a workflow.

    No two pairs of tenant and adapter give the same tenant. Stages without a workflow share one. So the
    tenant's own tree is not needed: it would hold the same outputs as the workflows' trees.
    """
    names = (stage.tenant,) if adapter is None else (stage.tenant, adapter)
    tenant = _WALL.join(name.replace("\\", "\\\\").replace(_WALL, f"\\{_WALL}") for name in names)
    path = stage.path if len(stage.path) > 1 else (NO_WORKFLOW, *stage.path)
    if len("/".join(path)) > MAX_PATH_CHARS:
        path = (NO_WORKFLOW, sha256(stage.name.encode()).hexdigest())
    return StageKey(tenant if tenant.isprintable() else ascii(tenant), path)


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


def _count(value: object, least: int) -> int | None:
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 9:
        value = int(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        return None
    return min(value, MAX_DRAFT_TOKENS)
