"""An upstream in this process, without a network hop: an :mod:`agentspec.generation` engine and its trees."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote

from prometheus_client.core import Metric

from agentspec.errors import ForestFileError, RequestError, UnknownModelError
from agentspec.forest_folder import ForestFolder
from agentspec.gateway.call import DETOKENIZE_PATH, MODELS_PATH, TOKENIZE_PATH, ApiCall, Endpoint, advice
from agentspec.gateway.errors import MethodNotAllowedError, NoControlError, UnknownUrlError
from agentspec.gateway.http.api_response import ApiResponse
from agentspec.gateway.http.request_body import parse_body
from agentspec.gateway.openai.choices_answer import ChoicesAnswer
from agentspec.gateway.openai.merge_streams import Indexed, fan_in
from agentspec.gateway.openai.messages import LeftOut
from agentspec.gateway.openai.responses_answer import ResponsesAnswer
from agentspec.gateway.openai.schemas import DetokenizeBody, TokenizeBody, read_as
from agentspec.gateway.openai.tokenization import detokenize, tokenize
from agentspec.gateway.upstreams.metrics import corpus_metrics
from agentspec.generation import Engine, GenerationRequest, PastOutput, Trees
from agentspec.stages import StageKey
from agentspec.stats import StageStats
from agentspec.tags import Tags

ELSEWHERE = {
    Endpoint.MESSAGES: "this engine has no API of Anthropic's: use /v1/chat/completions or vLLM",
    "/v1/messages/count_tokens": "this engine has no API of Anthropic's: /tokenize counts tokens",
    "/v1/embeddings": "this engine has no embeddings",
}
NO_FORESTS = ForestFolder()
ANSWERS: Mapping[str, Callable[[Mapping[str, Any], Tags, str], EmbeddedAnswer]] = {
    Endpoint.CHAT: ChoicesAnswer.of_chat,
    Endpoint.COMPLETIONS: ChoicesAnswer.of_completion,
    Endpoint.RESPONSES: ResponsesAnswer.of_body,
}


class EmbeddedAnswer(Protocol):
    """One answer of a generating endpoint, before its first token."""

    @property
    def requests(self) -> Sequence[GenerationRequest]:
        """Requests for the engine."""

    @property
    def left_out(self) -> LeftOut:
        """The parts of the call that the engine is not given."""

    async def write(self, deltas: AsyncIterator[Indexed], response: ApiResponse) -> None:
        """Write the answer while the deltas arrive."""


class EmbeddedUpstream:
    """An upstream that answers from an engine in this process.

    Args:
        forests: folder in which its trees may be saved.
        any_model: True to accept any model name.
        corpus_figures: returns the figures of its corpus by name; None = it has none.
    """

    def __init__(
        self,
        engine: Engine,
        forests: ForestFolder = NO_FORESTS,
        *,
        any_model: bool = False,
        corpus_figures: Callable[[], Mapping[str, float]] | None = None,
    ) -> None:
        self._engine = engine
        self._corpus_figures = corpus_figures
        self._any_model = any_model
        self._forests = forests

    async def start(self) -> None:
        """Do nothing: the engine runs already."""

    async def answer(self, call: ApiCall, response: ApiResponse) -> None:
        """Generate, tokenize, or describe the model; see :meth:`Upstream.answer`."""
        path = unquote(call.path)
        if path in ANSWERS:
            await self._generate(call, response)
        elif path in (TOKENIZE_PATH, DETOKENIZE_PATH):
            _check_method(call, "POST")
            await response.send_json(200, await self._tokenized(path, parse_body(call.raw_body)))
        elif path == MODELS_PATH or path.startswith(f"{MODELS_PATH}/"):
            _check_method(call, "GET", "HEAD")
            await response.send_json(200, self._models(path.removeprefix(MODELS_PATH).removeprefix("/")))
        else:
            raise UnknownUrlError(call.method, call.path, ELSEWHERE.get(path) or advice(path))

    async def _generate(self, call: ApiCall, response: ApiResponse) -> None:
        if call.tags is None or call.body is None:  # every POST to these paths has both
            raise MethodNotAllowedError(call.method, call.path, "POST")
        answer = ANSWERS[call.path](call.body, call.tags, self._engine.model.name)
        self._check_model(call.model)
        self._check_num_choices(answer.requests)
        response.headers.extend(answer.left_out.headers())
        async with aclosing(
            fan_in([self._engine.generate(request) for request in answer.requests])
        ) as deltas:
            await answer.write(deltas, response)

    async def _tokenized(self, path: str, given: Mapping[str, Any]) -> dict[str, Any]:
        if path == TOKENIZE_PATH:
            text = read_as(TokenizeBody, given)
            self._check_model(text.model)
            return await tokenize(self._engine, text)
        tokens = read_as(DetokenizeBody, given)
        self._check_model(tokens.model)
        return await detokenize(self._engine, tokens)

    def _models(self, model_id: str) -> dict[str, Any]:
        """Describe the one model, in a list if ``model_id`` is empty."""
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
        """True if the engine is healthy."""
        return self._engine.is_healthy

    async def stats(self) -> Mapping[StageKey, StageStats]:
        """Return the engine's counters."""
        return self._engine.stats()

    @property
    def stats_age_s(self) -> float:
        """Always 0: the engine is in this process."""
        return 0.0

    async def metrics(self) -> Iterable[Metric]:
        """Return the metrics of its corpus, if it has one. There is no connection to measure."""
        corpora = self.corpora()
        return corpus_metrics(corpora) if corpora else ()

    def corpora(self) -> Mapping[str, Mapping[str, float]]:
        """Return the figures of its corpus, if it has one."""
        return {} if self._corpus_figures is None else {"embedded": self._corpus_figures()}

    async def trace(self, tenant: str | None, request_id: str) -> None:
        """Return None: answers contain their own traces, and no copy is kept."""

    async def evict(self, stage: StageKey) -> dict[str, Any]:
        """Clear a tree of the engine; see :meth:`Upstream.evict`."""
        return {"freed_bytes": await asyncio.to_thread(self._trees.evict, stage)}

    async def warm(self, tenant: str, outputs: Sequence[PastOutput]) -> dict[str, Any]:
        """Insert into the engine's trees, concurrently with its decode steps; see :meth:`Upstream.warm`."""
        num_tokens = await asyncio.to_thread(self._trees.learn, outputs)
        return {"num_outputs": len(outputs), "num_tokens": num_tokens}

    async def save(self, path: str | None) -> dict[str, Any]:
        """Save the engine's trees; see :meth:`Upstream.save`."""
        return await self._with_file(path, self._trees.save)

    async def load(self, path: str | None) -> dict[str, Any]:
        """Load into the engine's trees; see :meth:`Upstream.load`."""
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
        if self._corpus_figures is not None:
            raise RequestError(
                "this engine has a corpus, which keeps its outputs: its trees are neither saved nor loaded, "
                "because a file may hold outputs that were erased"
            )
        try:
            file = self._forests.find(path)
            return {"path": str(file), **await asyncio.to_thread(work, file)}
        except ForestFileError as error:
            raise RequestError(str(error), param="path") from error

    def _check_num_choices(self, requests: Sequence[GenerationRequest]) -> None:
        """Refuse for good what the engine could not take even if it were idle."""
        num_choices, most = sum(request.sampling.n for request in requests), self._engine.model.max_choices
        if most is not None and num_choices > most:
            raise RequestError(
                f"{len(requests)} prompts with n={requests[0].sampling.n} are {num_choices} outputs, and this"
                f" engine holds at most {most} at a time: send fewer",
                param="n",
            )

    def _check_model(self, name: str | None) -> None:
        served = self._engine.model.name
        if name is not None and name != served and not self._any_model:
            raise UnknownModelError(f"there is no model {name!r} here, only {served!r}")


def _check_method(call: ApiCall, *allowed: str) -> None:
    if call.method not in allowed:
        raise MethodNotAllowedError(call.method, call.path, ", ".join(allowed))
