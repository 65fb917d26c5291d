"""The upstream in this process: an :class:`agentspec.generation.Engine`, with no hop between."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from agentspec.errors import EngineError, ForestFileError, RequestError, UnknownModelError
from agentspec.gateway.answer_forms import AnswerForm, ChatForm, Choice, CompletionForm
from agentspec.gateway.bodies import ChatBody, CompletionBody, GenerationBody, read_as
from agentspec.gateway.call import Call, Endpoint
from agentspec.gateway.errors import MethodNotAllowedError, NoControlError, UnknownUrlError
from agentspec.gateway.fan_in import Indexed, fan_in
from agentspec.gateway.reply import DONE_EVENT, EVENT_STREAM_HEADERS, Reply, encode_event
from agentspec.gateway.tags import Tags
from agentspec.gateway.tally import Tally
from agentspec.gateway.to_generation import chat_request, completion_requests
from agentspec.generation import Engine, GenerationRequest, PastOutput, Trees
from agentspec.stages import StageKey
from agentspec.stats import StageStats

MODELS_PATH = "/v1/models"
_GENERATING = frozenset((Endpoint.CHAT, Endpoint.COMPLETIONS))


@dataclass(slots=True)
class Answer:
    """One answer being written: its form, its envelope and its counts."""

    form: AnswerForm
    answer_id: str
    model: str
    num_prompts: int
    num_choices_per_prompt: int
    has_logprobs: bool
    created: int = field(default_factory=lambda: int(time.time()))
    tally: Tally = field(default_factory=Tally)

    @property
    def num_choices(self) -> int:
        """Choices of the whole answer."""
        return self.num_prompts * self.num_choices_per_prompt

    def envelope(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        """The members around the choices."""
        return {
            "id": self.answer_id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }

    def count(self, indexed: Indexed) -> int:
        """Count a delta; the index of the choice it belongs to, over all prompts."""
        prompt_index, delta = indexed
        self.tally.add(prompt_index, delta)
        return prompt_index * self.num_choices_per_prompt + delta.index


class EmbeddedUpstream:
    """Answers from an engine in this process; ``forest_file`` is where its trees are kept by default."""

    def __init__(self, engine: Engine, forest_file: Path | None = None) -> None:
        self._engine = engine
        self._forest_file = forest_file

    async def start(self) -> None:
        """Nothing to do: the engine runs."""

    async def answer(self, call: Call, reply: Reply) -> None:
        """Generate, or tell of the model; see :meth:`Upstream.answer`."""
        path = unquote(call.path)
        if call.tags is not None and path in _GENERATING:
            await self._generate(call, call.tags, reply)
        elif path in _GENERATING:
            raise MethodNotAllowedError(call.method, call.path, "POST")
        elif path == MODELS_PATH or path.startswith(f"{MODELS_PATH}/"):
            if call.method not in ("GET", "HEAD"):
                raise MethodNotAllowedError(call.method, call.path, "GET, HEAD")
            await reply.send_json(200, self._models(path.removeprefix(MODELS_PATH).removeprefix("/")))
        else:
            raise UnknownUrlError(call.method, call.path)

    async def _generate(self, call: Call, tags: Tags, reply: Reply) -> None:
        form: AnswerForm = ChatForm() if call.path == Endpoint.CHAT else CompletionForm()
        answer_id = f"{form.id_prefix}-{uuid.uuid4().hex}"  # not the client's id: that need not be unique
        body, requests = _read(call, tags, answer_id)
        self._check_model(body.model)
        sampling = requests[0].sampling
        answer = Answer(
            form,
            answer_id,
            self._engine.model.name,
            num_prompts=len(requests),
            num_choices_per_prompt=sampling.n,
            has_logprobs=sampling.logprobs is not None,
        )
        async with aclosing(fan_in([self._engine.generate(request) for request in requests])) as deltas:
            if body.stream:
                options = body.stream_options
                await _stream(answer, deltas, reply, bool(options and options.include_usage))
            else:
                await _collect(answer, deltas, reply)

    def _models(self, model_id: str) -> dict[str, Any]:
        """The one model, as a list if none is named."""
        card = self._engine.model
        described = {
            "id": card.name,
            "object": "model",
            "created": card.created,
            "owned_by": "agentspec",
            "max_model_len": card.max_model_len,
        }
        if not model_id:
            return {"object": "list", "data": [described]}
        self._check_model(model_id)
        return described

    async def is_healthy(self) -> bool:
        """As the engine says."""
        return self._engine.is_healthy

    async def stats(self) -> Mapping[StageKey, StageStats]:
        """The engine's counters."""
        return self._engine.stats()

    async def evict(self, stage: StageKey) -> dict[str, Any]:
        """From the engine's trees; see :meth:`Upstream.evict`."""
        return {"freed_bytes": await asyncio.to_thread(self._trees.evict, stage)}

    async def warm(self, tenant: str, outputs: Sequence[PastOutput]) -> dict[str, Any]:
        """Into the engine's trees, beside its decode steps; see :meth:`Upstream.warm`."""
        num_tokens = await asyncio.to_thread(self._trees.learn, outputs)
        return {"num_outputs": len(outputs), "num_tokens": num_tokens}

    async def save(self, path: str | None) -> dict[str, Any]:
        """The engine's trees; see :meth:`Upstream.save`."""
        return await self._with_file(path, self._trees.save)

    async def load(self, path: str | None) -> dict[str, Any]:
        """Into the engine's trees; see :meth:`Upstream.load`."""
        return await self._with_file(path, self._trees.load)

    async def close(self) -> None:
        """Close the engine."""
        await self._engine.close()

    @property
    def _trees(self) -> Trees:
        trees = self._engine.trees
        if trees is None:
            raise NoControlError("nothing is learned here: the engine was started with no drafts")
        return trees

    async def _with_file(self, path: str | None, work: Callable[[Path], Mapping[str, int]]) -> dict[str, Any]:
        file = self._forest_file if path is None else Path(path)
        if file is None:
            raise RequestError("say which file: there is no default here", param="path")
        try:
            return {"path": str(file), **await asyncio.to_thread(work, file)}
        except ForestFileError as error:
            raise RequestError(str(error), param="path") from error

    def _check_model(self, name: str | None) -> None:
        served = self._engine.model.name
        if name is not None and name != served:
            raise UnknownModelError(f"there is no model {name!r} here, only {served!r}")


def _read(call: Call, tags: Tags, answer_id: str) -> tuple[GenerationBody, list[GenerationRequest]]:
    if call.path == Endpoint.CHAT:
        chat = read_as(ChatBody, call.body)
        return chat, [chat_request(chat, tags, answer_id)]
    completion = read_as(CompletionBody, call.body)
    return completion, completion_requests(completion, tags, answer_id)


async def _collect(answer: Answer, deltas: AsyncIterator[Indexed], reply: Reply) -> None:
    choices = [Choice() for _ in range(answer.num_choices)]
    async for indexed in deltas:
        choices[answer.count(indexed)].add(indexed[1])
    if any(choice.finish_reason is None for choice in choices):
        raise EngineError("the engine stopped before the answer was complete")
    form = answer.form
    written = [form.whole(index, choice, answer.has_logprobs) for index, choice in enumerate(choices)]
    payload = answer.envelope(form.object_whole, written)
    await reply.send_json(200, {**payload, "usage": answer.tally.usage(), **answer.tally.metrics()})


async def _stream(answer: Answer, deltas: AsyncIterator[Indexed], reply: Reply, include_usage: bool) -> None:
    """One event per decode step, sent at once. The status waits for the first delta: it may be an error."""
    form = answer.form
    null_usage = {"usage": None} if include_usage else {}
    opened: set[int] = set()
    num_finished = 0
    async for indexed in deltas:
        if not opened:
            await reply.start(200, EVENT_STREAM_HEADERS)
        index, delta = answer.count(indexed), indexed[1]
        choices = []
        if index not in opened and (opening := form.opening(index)) is not None:
            choices.append(opening)
        opened.add(index)
        num_finished += delta.finish_reason is not None
        if delta.text or delta.finish_reason or (answer.has_logprobs and delta.logprobs):
            choices.append(form.chunk(index, delta, answer.has_logprobs))
        chunks = [{**answer.envelope(form.object_chunk, [one]), **null_usage} for one in choices]
        await reply.write(b"".join(map(encode_event, chunks)))
    if num_finished < answer.num_choices:
        raise EngineError("the engine stopped before the answer was complete")
    if include_usage:
        last = answer.envelope(form.object_chunk, [])
        await reply.write(encode_event({**last, "usage": answer.tally.usage(), **answer.tally.metrics()}))
    await reply.write(DONE_EVENT)
    await reply.end()
