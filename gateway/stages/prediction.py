"""OpenAI's ``prediction``: what the client expects as output. It drafts for its own request only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentspec.errors import RequestError
from agentspec.gateway.openai.text_content import read_text
from agentspec.wire import MAX_PREDICTION_CHARS


def read_prediction(body: Mapping[str, Any]) -> str | None:
    """The predicted text; None without one. Raises RequestError if it is malformed or too long."""
    prediction = body.get("prediction")
    if prediction is None:
        return None
    if not isinstance(prediction, dict):
        raise RequestError(
            f"prediction must be an object, not {prediction!r}", param="prediction", code="invalid_value"
        )
    text = read_text(prediction.get("content"), "prediction.content")
    if len(text) > MAX_PREDICTION_CHARS:
        raise RequestError(
            f"prediction.content has at most {MAX_PREDICTION_CHARS} characters, not {len(text)}",
            param="prediction.content",
            code="invalid_value",
        )
    return text
