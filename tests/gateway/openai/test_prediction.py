from __future__ import annotations

from typing import Any

import pytest

from agentspec.errors import RequestError
from agentspec.gateway.openai.messages import read_prediction
from agentspec.wire import MAX_PREDICTION_CHARS


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("SELECT 1", "SELECT 1"),
        ("", ""),
        ([{"type": "text", "text": "SELECT"}, {"type": "text", "text": "1"}], "SELECT\n1"),
        ("x" * MAX_PREDICTION_CHARS, "x" * MAX_PREDICTION_CHARS),
    ],
)
def test_its_text(content: Any, expected: str) -> None:
    assert read_prediction({"prediction": {"type": "content", "content": content}}) == expected


@pytest.mark.parametrize("body", [{}, {"prediction": None}])
def test_none(body: dict[str, Any]) -> None:
    assert read_prediction(body) is None


@pytest.mark.parametrize(
    ("prediction", "param"),
    [
        (5, "prediction"),
        ("SELECT", "prediction"),
        ({}, "prediction.content"),
        ({"content": 5}, "prediction.content"),
        ({"content": [5]}, "prediction.content[0]"),
        ({"content": None}, "prediction.content"),
        ({"content": [{"type": "image_url", "text": "a"}]}, "prediction.content[0]"),
        ({"content": "x" * (MAX_PREDICTION_CHARS + 1)}, "prediction.content"),
    ],
)
def test_what_is_none_is_refused(prediction: Any, param: str) -> None:
    with pytest.raises(RequestError) as caught:
        read_prediction({"prediction": prediction})
    assert caught.value.param == param
    assert len(str(caught.value)) < 200
