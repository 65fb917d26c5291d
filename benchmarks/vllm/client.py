"""Clients of an OpenAI-compatible server that request token ids; some cancel before the response ends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from agentspec.errors import AgentSpecError
from benchmarks.vllm.chats import Chat

TIMEOUT_S = 600.0
DATA = "data: "
END = "[DONE]"

Leaves = Callable[[Chat], int | None]  # tokens after which a client cancels, None = it stays


@dataclass(slots=True)
class Choice:
    """One choice of a response.

    Attributes:
        finish: finish reason and, for a stop string, which one; None before the end.
        logprobs: log probabilities of the tokens, if requested.
    """

    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    finish: tuple[str, str | None] | None = None
    logprobs: list[float] = field(default_factory=list)


@dataclass(slots=True)
class Answer:
    """A client's record of one response; ``prompt_ids`` is the rendered prompt."""

    prompt_ids: list[int] = field(default_factory=list)
    choices: dict[int, Choice] = field(default_factory=dict)

    @property
    def num_tokens(self) -> int:
        """Number of output tokens of all choices."""
        return sum(len(choice.token_ids) for choice in self.choices.values())

    def take(self, chunk: dict[str, Any]) -> None:
        """Add the content of one event of the stream."""
        self.prompt_ids = chunk.get("prompt_token_ids") or self.prompt_ids
        for part in chunk.get("choices", ()):
            choice = self.choices.setdefault(part["index"], Choice())
            choice.token_ids += part.get("token_ids") or []
            choice.text += part["delta"].get("content") or ""
            choice.logprobs += [one["logprob"] for one in (part.get("logprobs") or {}).get("content") or ()]
            if part.get("finish_reason"):
                choice.finish = part["finish_reason"], part.get("stop_reason")


def stays(chat: Chat) -> int | None:
    """Never cancel."""
    return None


def ask_all(url: str, chats: Sequence[Chat], num_clients: int, leaves: Leaves = stays) -> list[Answer]:
    """Return the responses in the order of the chats, with ``num_clients`` requests at a time.

    Raises:
        AgentSpecError: the server refused one.
    """
    return asyncio.run(_ask_all(url, chats, num_clients, leaves))


async def _ask_all(url: str, chats: Sequence[Chat], num_clients: int, leaves: Leaves) -> list[Answer]:
    answers: dict[int, Answer] = {}
    waiting = iter(enumerate(chats))
    async with clients(url, num_clients) as http, asyncio.TaskGroup() as group:
        for _ in range(num_clients):
            group.create_task(_ask_in_turn(http, waiting, answers, leaves))
    return [answers[number] for number in range(len(chats))]


async def _ask_in_turn(
    http: httpx.AsyncClient, waiting: Iterable[tuple[int, Chat]], answers: dict[int, Answer], leaves: Leaves
) -> None:
    for number, chat in waiting:
        answers[number] = await ask(http, chat, leaves(chat))


def clients(url: str, num_clients: int) -> httpx.AsyncClient:
    """Return a client for ``num_clients`` concurrent connections to the server."""
    limits = httpx.Limits(max_connections=num_clients, max_keepalive_connections=num_clients)
    return httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S, limits=limits)


async def ask(http: httpx.AsyncClient, chat: Chat, leave_after: int | None = None) -> Answer:
    """Stream one response to its end, or cancel after ``leave_after`` tokens.

    Raises:
        AgentSpecError: the server refused the request, or failed while streaming.
    """
    answer = Answer()
    body = {**chat.body, "stream": True, "return_token_ids": True}
    async with http.stream("POST", "/v1/chat/completions", json=body) as response:
        if response.is_error:
            raise AgentSpecError(f"{chat.name!r}: {response.status_code} {(await response.aread()).decode()}")
        async for chunk in _events(response):
            if "error" in chunk:
                raise AgentSpecError(f"{chat.name!r}: {chunk['error']}")
            answer.take(chunk)
            if leave_after is not None and answer.num_tokens >= leave_after:
                break
    return answer


async def _events(response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    async for line in response.aiter_lines():
        if line.startswith(DATA) and (data := line.removeprefix(DATA)) != END:
            yield json.loads(data)
