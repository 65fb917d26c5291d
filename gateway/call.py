"""One request that an upstream is to answer, as far as the gateway has understood it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any
from urllib.parse import unquote

from starlette.datastructures import Headers

from agentspec.gateway.stages.read_tags import Tags
from agentspec.gateway.telemetry.call_log import CallRecord

MODEL_PREFIX = "/v1/models/"


class Endpoint(StrEnum):
    """The paths that generate, and take tags. A POST to any of them is tagged."""

    CHAT = "/v1/chat/completions"
    COMPLETIONS = "/v1/completions"
    RESPONSES = "/v1/responses"
    MESSAGES = "/v1/messages"
    CHAT_BATCH = "/v1/chat/completions/batch"


@dataclass(frozen=True, slots=True)
class Call:
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
    record: CallRecord = field(default_factory=CallRecord)

    @property
    def model(self) -> str | None:
        """The model it names, if it names one."""
        if self.path.startswith(MODEL_PREFIX):
            return unquote(self.path.removeprefix(MODEL_PREFIX))
        model = None if self.body is None else self.body.get("model")
        return model if isinstance(model, str) else None
