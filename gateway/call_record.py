"""What became of one call, noted on its way, for the log and its span. Nothing of what was said is in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agentspec.gateway.tags import Tags

RECORD_KEY = "agentspec.record"
MAX_MODEL_CHARS = 128  # clients choose the name


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
        trace_headers: this call's trace context as headers for the engine; without any, the client's go on.
    """

    tenant: str | None = None
    model: str | None = None
    tags: Tags | None = None
    upstream: str | None = None
    num_tries: int = 0
    told: Mapping[str, Any] = field(default_factory=dict)
    trace_headers: Mapping[bytes, bytes] = field(default_factory=dict)

    @property
    def num_retries(self) -> int:
        """Tries after the first."""
        return max(0, self.num_tries - 1)

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
        }
        return {name: value for name, value in named.items() if value is not None}
