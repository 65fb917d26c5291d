"""The object that the responses API answers with, around its output."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

# what a client said and finds again in the answer, and what it reads there if it said nothing
ECHOED = {
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "parallel_tool_calls": True,
    "prompt_cache_key": None,
    "reasoning": {"effort": None, "summary": None},
    "safety_identifier": None,
    "temperature": 1.0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": (),
    "top_logprobs": 0,
    "top_p": 1.0,
    "user": None,
    "metadata": {},
}
# what it may have asked for and doesn't get: nothing is kept, nothing waits, nothing is cut off
FIXED = {
    "background": False,
    "previous_response_id": None,
    "service_tier": "default",
    "store": False,
    "truncation": "disabled",
}


@dataclass(slots=True)
class ResponseObject:
    """All of a response that is known before its first token, and its states from then on."""

    response_id: str
    model: str
    given: Mapping[str, Any]
    created: int = field(default_factory=lambda: int(time.time()))

    def in_progress(self) -> dict[str, Any]:
        """While it is written."""
        return self._state("in_progress", [], None)

    def ended(
        self, output: Sequence[dict[str, Any]], usage: Mapping[str, Any], *, is_complete: bool
    ) -> dict[str, Any]:
        """At its end; ``is_complete``: the model ended it, and not ``max_output_tokens``."""
        if is_complete:
            return self._state("completed", output, usage, completed_at=int(time.time()))
        return self._state("incomplete", output, usage, incomplete_details={"reason": "max_output_tokens"})

    def failed(self, output: Sequence[dict[str, Any]], message: str) -> dict[str, Any]:
        """When the engine gave it up."""
        return self._state("failed", output, None, error={"code": "server_error", "message": message})

    def _state(
        self, status: str, output: Sequence[dict[str, Any]], usage: Mapping[str, Any] | None, **more: Any
    ) -> dict[str, Any]:
        return {
            "id": self.response_id,
            "object": "response",
            "created_at": self.created,
            "completed_at": None,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "model": self.model,
            "output": output,
            **self._echo(),
            **FIXED,
            "usage": usage,
            **more,
        }

    def _echo(self) -> dict[str, Any]:
        said = {name: self.given.get(name) for name in ECHOED}
        return {name: default if said[name] is None else said[name] for name, default in ECHOED.items()}
