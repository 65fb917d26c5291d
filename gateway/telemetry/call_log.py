"""What became of one call, noted on its way, for the log and its span. Nothing of what was said is in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from agentspec.errors import EngineError
from agentspec.gateway.errors import ShuttingDownError, UpstreamDownError, UpstreamTimeoutError
from agentspec.gateway.stages.read_tags import Tags

RECORD_KEY = "agentspec.record"
MAX_MODEL_CHARS = 128  # clients choose the name


class Outcome(StrEnum):
    """Why an answer that had begun has no end."""

    CLIENT_LEFT = "client_left"
    ENGINE_LOST = "engine_lost"
    ENGINE_SILENT = "engine_silent"
    ENGINE_FAILED = "engine_failed"
    SHUT_DOWN = "shut_down"
    INTERNAL_ERROR = "internal_error"

    @classmethod
    def of(cls, error: Exception) -> Outcome:
        """The one that ``error`` makes of an answer."""
        kinds: tuple[tuple[type[Exception], Outcome], ...] = (
            (UpstreamDownError, cls.ENGINE_LOST),
            (UpstreamTimeoutError, cls.ENGINE_SILENT),
            (ShuttingDownError, cls.SHUT_DOWN),
            (EngineError, cls.ENGINE_FAILED),
        )
        return next((outcome for kind, outcome in kinds if isinstance(error, kind)), cls.INTERNAL_ERROR)


@dataclass(slots=True)
class CallRecord:
    """Filled in by whoever finds something out; read when the call is over.

    Attributes:
        tenant: None until the key was looked up.
        model: the one that was asked for.
        tags: None until they were read, and for a call that generates nothing.
        upstream: the name of the engine that answered, or was asked last.
        num_tries: how often an engine was asked.
        told: what the answer told of itself at its end, see AnswerTail.
        outcome: None for a whole answer.
        trace_headers: this call's trace context as headers for the engine; without any, the client's go on.
    """

    tenant: str | None = None
    model: str | None = None
    tags: Tags | None = None
    upstream: str | None = None
    num_tries: int = 0
    told: Mapping[str, Any] = field(default_factory=dict)
    outcome: Outcome | None = None
    trace_headers: Mapping[bytes, bytes] = field(default_factory=dict)

    @property
    def num_retries(self) -> int:
        """Tries after the first."""
        return max(0, self.num_tries - 1)

    @property
    def is_broken(self) -> bool:
        """The answer has no end, and not by the client's will."""
        return self.outcome is not None and self.outcome is not Outcome.CLIENT_LEFT

    @property
    def named_model(self) -> str | None:
        """The model, no longer than a name is."""
        return None if self.model is None else self.model[:MAX_MODEL_CHARS]

    def fields(self) -> dict[str, object]:
        """What is known, by the names that the log has for it."""
        tags = self.tags
        named = {
            "tenant": self.tenant,
            "stage": tags and tags.stage.name,
            "stage_source": tags and tags.stage_source,
            "model": self.named_model,
            "upstream": self.upstream,
            "retries": self.num_retries or None,
            "outcome": self.outcome and self.outcome.value,
        }
        return {name: value for name, value in named.items() if value is not None}
