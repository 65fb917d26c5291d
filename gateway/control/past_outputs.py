"""Parses past outputs in JSON lines, with which a tenant's stages are warmed.

A line is ``{"stage": path, "response": text}`` or a recorded chat, ``{"stage": path, "messages": [...]}``.
In a chat every text of the assistant is an output. ``agentspec replay`` reads the same forms.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from agentspec.errors import RequestError, StageError
from agentspec.gateway.http.request_body import parse_body
from agentspec.gateway.openai.content import read_text
from agentspec.generation import PastOutput
from agentspec.stages import DEFAULT_STAGE, StageKey


def read_past_outputs(raw: bytes, tenant: str) -> list[PastOutput]:
    """Return the outputs in ``raw``, in order. Raises RequestError, with the number of an invalid line."""
    outputs: list[PastOutput] = []
    for number, line in enumerate(raw.split(b"\n"), 1):
        if line.strip():
            try:
                outputs.extend(_outputs(parse_body(line), tenant))
            except (RequestError, StageError) as error:
                raise RequestError(f"line {number}: {error}", code="invalid_line") from None
    return outputs


def _outputs(record: Mapping[str, Any], tenant: str) -> Iterator[PastOutput]:
    name = record.get("stage", DEFAULT_STAGE)
    if not isinstance(name, str):
        raise RequestError(f"stage must be a string, not {name!r}")
    stage = StageKey.parse(name, tenant)
    texts = _said(record["messages"]) if "messages" in record else [record.get("response")]
    for text in texts:
        if not isinstance(text, str):
            raise RequestError(f"response must be a string, not {text!r}")
        if text:  # an empty output teaches nothing
            yield PastOutput(stage, text)


def _said(messages: object) -> Iterator[str]:
    """Yield the assistant's texts, without tool calls: only the model's template defines their form."""
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise RequestError(f"messages must be a list of objects, not {messages!r}")
    for index, message in enumerate(messages):
        if message.get("role") == "assistant" and message.get("content"):
            yield read_text(message["content"], f"messages[{index}].content")
