"""Model calls, tagged with their stage, streamed and timed. They work with any OpenAI-compatible server."""

from __future__ import annotations

import time
from collections.abc import Collection
from copy import copy
from dataclasses import dataclass, field
from typing import Any, Self

from agentspec.adapters.headers import agentspec_headers
from examples.saving.openai_client import AsyncOpenAI

Messages = list[dict[str, str]]
JSON_FORMAT = {"type": "json_object"}


@dataclass(frozen=True, slots=True)
class Call:
    """Result and timing of one call.

    ``decode_s``: from the first to the last streamed token. Time per output token (TPOT) is
    ``decode_s / (num_output_tokens - 1)``. ``speculation``: the server's figures, if it reports any.
    """

    stage: str
    text: str
    num_output_tokens: int
    ttft_s: float
    decode_s: float
    speculation: dict[str, Any] = field(default_factory=dict)


class Caller:
    """The calls of one workflow run: one session, with or without speculation, greedy by default.

    ``json_stages`` are the stages that must answer in JSON.
    """

    def __init__(
        self,
        client: AsyncOpenAI,
        model: str,
        workflow: str,
        session: str,
        *,
        speculate: bool = True,
        json_stages: Collection[str] = (),
    ) -> None:
        self._client = client
        self._model = model
        self._workflow = workflow
        self._session = session
        self._off: dict[str, Any] = {} if speculate else {"max_draft": 0, "learn": False}
        self._json_stages = json_stages
        self._sampling: dict[str, Any] = {"temperature": 0}
        self.calls: list[Call] = []

    def sampled(self, temperature: float, seed: int) -> Self:
        """Return a copy that samples; it records its calls in the same list."""
        other = copy(self)
        other._sampling = {"temperature": temperature, "seed": seed}
        return other

    async def ask(
        self, stage: str, messages: Messages, max_tokens: int = 256, prediction: str | None = None
    ) -> str:
        """Return the model's answer and record the call in ``calls``.

        ``prediction``: text that the answer may resemble. It speeds up the answer and never changes it.
        """
        started = first = last = time.perf_counter()
        text, usage = "", None
        metrics: dict[str, Any] = {}
        stream = await self._client.chat.completions.create(
            **self._arguments(stage, messages, max_tokens), **_predicted(prediction)
        )
        async for chunk in stream:
            if chunk.choices and (chunk.choices[0].delta.content or chunk.choices[0].finish_reason):
                last = time.perf_counter()
                first = first if text else last
                text += chunk.choices[0].delta.content or ""
            if chunk.usage is not None:
                usage = chunk.usage
                metrics = (chunk.model_extra or {}).get("metrics") or {}
        num_tokens = usage.completion_tokens if usage else 0
        speculation = metrics.get("speculative_decoding", {})
        self.calls.append(Call(stage, text, num_tokens, first - started, last - first, speculation))
        return text

    def _arguments(self, stage: str, messages: Messages, max_tokens: int) -> dict[str, Any]:
        headers = agentspec_headers(f"{self._workflow}/{stage}", self._session, **self._off)
        return {
            "model": self._model,
            "messages": messages,
            **self._sampling,
            "max_tokens": max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
            "extra_headers": headers,
            **({"response_format": JSON_FORMAT} if stage in self._json_stages else {}),
        }


def _predicted(prediction: str | None) -> dict[str, Any]:
    return {"prediction": {"type": "content", "content": prediction}} if prediction else {}
