"""One answer of the responses API: an object, or the events that build it up."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentspec.errors import EngineError
from agentspec.gateway.answer_forms import Choice, describe_logprobs
from agentspec.gateway.bodies import ResponsesBody, read_as
from agentspec.gateway.errors import describe
from agentspec.gateway.fan_in import Indexed
from agentspec.gateway.reply import EVENT_STREAM_HEADERS, Reply, encode_event
from agentspec.gateway.response_object import ResponseObject, message_item, text_part
from agentspec.gateway.tags import Tags
from agentspec.gateway.tally import Tally
from agentspec.gateway.to_generation import responses_request
from agentspec.generation import GenerationDelta, GenerationRequest

Event = dict[str, Any]
TEXT_PLACE = {"output_index": 0, "content_index": 0}


@dataclass(slots=True)
class ResponsesAnswer:
    """An answer being written: what was asked, what has come of it and what was counted."""

    response: ResponseObject
    item_id: str
    is_streamed: bool
    requests: Sequence[GenerationRequest]
    choice: Choice = field(default_factory=Choice)
    tally: Tally = field(default_factory=Tally)

    @classmethod
    def of_body(cls, given: Mapping[str, Any], tags: Tags, model: str) -> ResponsesAnswer:
        """To ``POST /v1/responses``. Raises RequestError."""
        body, name = read_as(ResponsesBody, given), uuid.uuid4().hex
        request = responses_request(body, tags, f"resp_{name}")
        response = ResponseObject(request.request_id, model, given)
        return cls(response, f"msg_{name}", bool(body.stream), [request])

    async def write(self, deltas: AsyncIterator[Indexed], reply: Reply) -> None:
        """The answer, as the deltas come. Raises EngineError if they end before it has begun."""
        await (self._stream(deltas, reply) if self.is_streamed else self._collect(deltas, reply))

    async def _collect(self, deltas: AsyncIterator[Indexed], reply: Reply) -> None:
        async for _, delta in deltas:
            self._take(delta)
        await reply.send_json(200, self._ended())

    async def _stream(self, deltas: AsyncIterator[Indexed], reply: Reply) -> None:
        """One event per decode step, at once. The status waits for the first delta: it may be an error."""
        events = EventStream(reply)
        try:
            async for _, delta in deltas:
                self._take(delta)
                if not reply.is_started:
                    await reply.start(200, EVENT_STREAM_HEADERS)
                    await events.write(self._opening())
                if delta.text:
                    await events.write([self._text_delta(delta)])
            await events.write(self._closing())
        except Exception as error:
            if not reply.is_started:
                raise
            _, told = describe(error)
            failed = self.response.failed(told["error"]["message"])
            await events.write([{"type": "response.failed", "response": failed}])
        await reply.end()

    def _take(self, delta: GenerationDelta) -> None:
        self.tally.add(0, delta)
        self.choice.add(delta)

    def _opening(self) -> list[Event]:
        item = message_item(self.item_id, "in_progress")
        return [
            {"type": "response.created", "response": self.response.in_progress()},
            {"type": "response.in_progress", "response": self.response.in_progress()},
            {"type": "response.output_item.added", "output_index": 0, "item": item},
            self._of_text("response.content_part.added", part=text_part()),
        ]

    def _text_delta(self, delta: GenerationDelta) -> Event:
        logprobs = describe_logprobs(delta.logprobs)
        return self._of_text("response.output_text.delta", delta=delta.text, logprobs=logprobs)

    def _closing(self) -> list[Event]:
        ended = self._ended()
        (item,) = ended["output"]
        (part,) = item["content"]
        return [
            self._of_text("response.output_text.done", text=part["text"], logprobs=part["logprobs"]),
            self._of_text("response.content_part.done", part=part),
            {"type": "response.output_item.done", "output_index": 0, "item": item},
            {"type": f"response.{ended['status']}", "response": ended},
        ]

    def _of_text(self, kind: str, **members: Any) -> Event:
        return {"type": kind, "item_id": self.item_id, **TEXT_PLACE, **members}

    def _ended(self) -> dict[str, Any]:
        """The whole response. Raises EngineError if the engine stopped before its end."""
        if self.choice.finish_reason is None:
            raise EngineError("the engine stopped before the answer was complete")
        is_complete = self.choice.finish_reason != "length"
        part = text_part("".join(self.choice.texts), self.choice.logprobs)
        item = message_item(self.item_id, "completed" if is_complete else "incomplete", [part])
        ended = self.response.ended([item], self.tally.responses_usage(), is_complete=is_complete)
        return {**ended, **self.tally.metrics()}


class EventStream:
    """Writes named events and numbers them."""

    def __init__(self, reply: Reply) -> None:
        self._reply = reply
        self._num_written = 0

    async def write(self, events: Sequence[Event]) -> None:
        """All of them at once."""
        parts = []
        for event in events:
            parts.append(encode_event({**event, "sequence_number": self._num_written}, event["type"]))
            self._num_written += 1
        await self._reply.write(b"".join(parts))
