"""One answer of chat or text completions: choices, whole or in chunks."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentspec.errors import EngineError
from agentspec.gateway.http.api_response import DONE_EVENT, EVENT_STREAM_HEADERS, ApiResponse, encode_event
from agentspec.gateway.openai.answer_forms import AnswerForm, AnswerUsage, ChatForm, Choice, CompletionForm
from agentspec.gateway.openai.merge_streams import Indexed
from agentspec.gateway.openai.messages import LeftOut
from agentspec.gateway.openai.schemas import ChatBody, CompletionBody, GenerationBody, read_as
from agentspec.gateway.openai.to_generation import chat_request, completion_requests
from agentspec.generation import GenerationRequest
from agentspec.tags import Tags


@dataclass(slots=True)
class ChoicesAnswer:
    """An answer in progress: its requests, form, envelope and usage."""

    form: AnswerForm
    answer_id: str
    model: str
    body: GenerationBody
    requests: Sequence[GenerationRequest]
    created: int = field(default_factory=lambda: int(time.time()))
    answer_usage: AnswerUsage = field(default_factory=AnswerUsage)
    left_out: LeftOut = field(default_factory=LeftOut)

    @classmethod
    def of_chat(cls, given: Mapping[str, Any], tags: Tags, model: str) -> ChoicesAnswer:
        """Create the answer to ``POST /v1/chat/completions``. Raises RequestError."""
        body, answer_id, left_out = read_as(ChatBody, given), _answer_id(ChatForm.id_prefix), LeftOut()
        request = chat_request(body, tags, answer_id, left_out)
        form = ChatForm(
            reads_calls=bool(request.tools),
            max_calls=1 if body.parallel_tool_calls is False else None,
            includes_reasoning=body.include_reasoning is not False,
        )
        return cls(form, answer_id, model, body, [request], left_out=left_out)

    @classmethod
    def of_completion(cls, given: Mapping[str, Any], tags: Tags, model: str) -> ChoicesAnswer:
        """Create the answer to ``POST /v1/completions``. Raises RequestError."""
        body, answer_id = read_as(CompletionBody, given), _answer_id(CompletionForm.id_prefix)
        requests = completion_requests(body, tags, answer_id)
        return cls(CompletionForm(), answer_id, model, body, requests)

    async def write(self, deltas: AsyncIterator[Indexed], response: ApiResponse) -> None:
        """Write the answer while the deltas arrive. Raises EngineError if they end too early."""
        await (self._stream(deltas, response) if self.body.stream else self._collect(deltas, response))

    async def _collect(self, deltas: AsyncIterator[Indexed], response: ApiResponse) -> None:
        choices = [Choice() for _ in range(self._num_choices)]
        async for indexed in deltas:
            choices[self._count(indexed)].add(indexed[1])
        if any(choice.finish_reason is None for choice in choices):
            raise EngineError("the engine stopped before the answer was complete")
        written = [self.form.whole(index, choice, self._has_logprobs) for index, choice in enumerate(choices)]
        payload = self._envelope(self.form.object_whole, written)
        await response.send_json(
            200, {**payload, "usage": self.answer_usage.usage(), **self.answer_usage.metrics()}
        )

    async def _stream(self, deltas: AsyncIterator[Indexed], response: ApiResponse) -> None:
        """Write one event per decode step, without delay. The status waits for the first delta or error."""
        null_usage = {"usage": None} if self._includes_usage else {}
        opened: set[int] = set()
        num_finished = 0
        async for indexed in deltas:
            if not opened:
                await response.start(200, EVENT_STREAM_HEADERS)
            index, delta = self._count(indexed), indexed[1]
            opening = None if index in opened else self.form.opening(index)
            opened.add(index)
            num_finished += delta.finish_reason is not None
            choices = (opening, self.form.chunk(index, delta, self._has_logprobs))
            chunks = [
                {**self._envelope(self.form.object_chunk, [one]), **null_usage} for one in choices if one
            ]
            await response.write(b"".join(map(encode_event, chunks)))
        if num_finished < self._num_choices:
            raise EngineError("the engine stopped before the answer was complete")
        if self._includes_usage:
            last = self._envelope(self.form.object_chunk, [])
            usage = {"usage": self.answer_usage.usage(), **self.answer_usage.metrics()}
            await response.write(encode_event({**last, **usage}))
        await response.write(DONE_EVENT)
        await response.end()

    @property
    def _num_choices(self) -> int:
        return len(self.requests) * self._num_choices_per_prompt

    @property
    def _num_choices_per_prompt(self) -> int:
        return self.requests[0].sampling.n

    @property
    def _has_logprobs(self) -> bool:
        return self.requests[0].sampling.logprobs is not None

    @property
    def _includes_usage(self) -> bool:
        options = self.body.stream_options
        return bool(options and options.include_usage)

    def _count(self, indexed: Indexed) -> int:
        """Count a delta and return the index of its choice over all prompts."""
        prompt_index, delta = indexed
        self.answer_usage.add(prompt_index, delta)
        return prompt_index * self._num_choices_per_prompt + delta.index

    def _envelope(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the answer object with these choices."""
        return {
            "id": self.answer_id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }


def _answer_id(prefix: str) -> str:
    """Return a new answer id. The client's request id is not used, as it need not be unique."""
    return f"{prefix}-{uuid.uuid4().hex}"
