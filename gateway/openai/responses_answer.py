"""One answer of the responses API, as an object or as a stream of events."""

from __future__ import annotations

import re
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentspec.errors import EngineError, RequestError
from agentspec.gateway.http.api_response import EVENT_STREAM_HEADERS, ApiResponse, encode_event
from agentspec.gateway.openai.answer_forms import AnswerUsage, finish_reason
from agentspec.gateway.openai.merge_streams import Indexed
from agentspec.gateway.openai.messages import LeftOut
from agentspec.gateway.openai.output_reader import Event as ReadEvent
from agentspec.gateway.openai.output_reader import OutputReader, Text
from agentspec.gateway.openai.response_output import Event, ResponseObject, ResponseOutput
from agentspec.gateway.openai.schemas import ResponsesBody, read_as
from agentspec.gateway.openai.to_generation import responses_request
from agentspec.generation import GenerationDelta, GenerationRequest, TokenLogprob
from agentspec.tags import Tags

FIELD_NAMES = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "response_format": "text.format",
}


@dataclass(slots=True)
class ResponsesAnswer:
    """An answer in progress: its requests, output and usage.

    ``reader`` separates tool calls and reasoning from text; None if there can be none.
    """

    response: ResponseObject
    is_streamed: bool
    requests: Sequence[GenerationRequest]
    reader: OutputReader | None = None
    output: ResponseOutput = field(default_factory=ResponseOutput)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: str | None = None
    answer_usage: AnswerUsage = field(default_factory=AnswerUsage)
    left_out: LeftOut = field(default_factory=LeftOut)

    @classmethod
    def of_body(cls, given: Mapping[str, Any], tags: Tags, model: str) -> ResponsesAnswer:
        """Create the answer to ``POST /v1/responses``. Raises RequestError."""
        body, left_out = read_as(ResponsesBody, given), LeftOut()
        request = responses_request(body, tags, f"resp_{uuid.uuid4().hex}", left_out)
        response = ResponseObject(request.request_id, model, given)
        return cls(response, bool(body.stream), [request], left_out=left_out)

    async def write(self, deltas: AsyncIterator[Indexed], api_response: ApiResponse) -> None:
        """Write the answer while the deltas arrive. Raises EngineError if they end before it has begun."""
        try:
            await (
                self._stream(deltas, api_response)
                if self.is_streamed
                else self._collect(deltas, api_response)
            )
        except RequestError as error:
            _rename(error)
            raise

    async def _collect(self, deltas: AsyncIterator[Indexed], api_response: ApiResponse) -> None:
        async for _, delta in deltas:
            self._take(delta)
        self._end()
        await api_response.send_json(200, self._ended())

    async def _stream(self, deltas: AsyncIterator[Indexed], api_response: ApiResponse) -> None:
        """Write the events of each decode step together. The status waits for the first delta or error."""
        events = EventStream(api_response)
        try:
            async for _, delta in deltas:
                ready = self._take(delta)
                if not api_response.is_started:
                    await api_response.start(200, EVENT_STREAM_HEADERS)
                    await events.write(self._opening())
                await events.write(ready)
            await events.write(self._end())
            ended = self._ended()
            await events.write([{"type": f"response.{ended['status']}", "response": ended}])
        except Exception as error:
            if not api_response.is_started:
                raise
            _, body = api_response.describe(error)
            failed = self.response.failed(self.output.items, body["error"]["message"])
            await events.write([{"type": "response.failed", "response": failed}])
        await api_response.end()

    def _opening(self) -> list[Event]:
        begun = self.response.in_progress()
        return [{"type": f"response.{name}", "response": begun} for name in ("created", "in_progress")]

    def _take(self, delta: GenerationDelta) -> list[Event]:
        """Count a delta and add it to the output. Log probabilities are kept until their text follows."""
        self.answer_usage.add(0, delta)
        self.finish_reason = finish_reason(delta)
        self.logprobs.extend(delta.logprobs)
        return [event for read in self._read(delta) for event in self.output.add(read, self._take_logprobs())]

    def _read(self, delta: GenerationDelta) -> list[ReadEvent]:
        reads_calls = bool(self.requests[0].tools)
        if not reads_calls and delta.think_tags == "unknown":
            return [Text(delta.text)] if delta.text else []
        if self.reader is None:
            max_calls = 1 if self.response.given.get("parallel_tool_calls") is False else None
            self.reader = OutputReader(
                reads_calls=reads_calls, think_tags=delta.think_tags, max_calls=max_calls
            )
        return self.reader.push(delta.text) + (self.reader.end() if delta.finish_reason else [])

    def _take_logprobs(self) -> list[TokenLogprob]:
        taken, self.logprobs = self.logprobs, []
        return taken

    def _end(self) -> list[Event]:
        """End the output. Raises EngineError if the engine stopped before its end."""
        if self.finish_reason is None:
            raise EngineError("the engine stopped before the answer was complete")
        return self.output.end("completed" if self._is_complete else "incomplete", self._take_logprobs())

    def _ended(self) -> dict[str, Any]:
        usage = self.answer_usage.responses_usage()
        ended = self.response.ended(self.output.items, usage, is_complete=self._is_complete)
        return {**ended, **self.answer_usage.metrics()}

    @property
    def _is_complete(self) -> bool:
        return self.finish_reason != "length"


def _rename(error: RequestError) -> None:
    """Rename the field in an error from its name in chat, which the engine uses, to that in this API."""
    name = FIELD_NAMES.get(error.param or "")
    if name is not None:
        error.args = (re.sub(rf"^{error.param}(?=:)|\b{error.param}(?==)", name, str(error)),)
        error.param = name


class EventStream:
    """A stream of named, numbered events."""

    def __init__(self, api_response: ApiResponse) -> None:
        self._api_response = api_response
        api_response.has_typed_events = True
        self._num_written = 0

    async def write(self, events: Sequence[Event]) -> None:
        """Write all events in one call."""
        await self._api_response.write(b"".join(self._numbered(events)))

    def _numbered(self, events: Sequence[Event]) -> Iterator[bytes]:
        for event in events:
            yield encode_event({**event, "sequence_number": self._num_written}, event["type"])
            self._num_written += 1
