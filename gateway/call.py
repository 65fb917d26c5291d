"""One call: what is asked, by whom, and how it ended. Its record holds nothing of what was said."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any
from urllib.parse import unquote

from starlette.datastructures import Headers

from agentspec.errors import EngineError
from agentspec.gateway.errors import ShuttingDownError, UpstreamDownError, UpstreamTimeoutError
from agentspec.gateway.tags import Tags

MODEL_PREFIX = "/v1/models/"
RECORD_KEY = "agentspec.record"
MAX_MODEL_CHARS = 128  # clients choose the name


class Endpoint(StrEnum):
    """The paths that generate, and take tags. A POST to any of them is tagged."""

    CHAT = "/v1/chat/completions"
    COMPLETIONS = "/v1/completions"
    RESPONSES = "/v1/responses"
    MESSAGES = "/v1/messages"
    CHAT_BATCH = "/v1/chat/completions/batch"


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
class CallLog:
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


@dataclass(frozen=True, slots=True)
class ApiCall:
    """What is asked, and by whom.

    Attributes:
        path: percent-encoded, as it came, without the stage.
        query: what came after the ``?``.
        raw_body: the bytes as they came.
        body: the JSON object in them; None if they hold none.
        tags: None on a call that generates nothing.
        record: what becomes of it, for whoever is not told otherwise.
    """

    method: str
    path: str
    query: str
    request_id: str
    tenant: str
    headers: Headers
    raw_body: bytes
    body: Mapping[str, Any] | None
    tags: Tags | None
    record: CallLog = field(default_factory=CallLog)

    @property
    def model(self) -> str | None:
        """The model it names, if it names one."""
        if self.path.startswith(MODEL_PREFIX):
            return unquote(self.path.removeprefix(MODEL_PREFIX))
        model = None if self.body is None else self.body.get("model")
        return model if isinstance(model, str) else None
