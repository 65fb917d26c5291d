"""The bytes of the stub's responses on each endpoint of an OpenAI-compatible server, word by word.

They depend only on endpoint and plan, so a client can detect any byte changed on the way.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from benchmarks.gateway.plan import Plan

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"
EMBEDDINGS = "/v1/embeddings"

NUM_PROMPT_TOKENS = 1_500
NUM_DIMENSIONS = 256
WORDS = " the plan reads naïve rows — joins “orders” to 顧客, counts per city, then answers".split(" ")[1:]
DONE = b"data: [DONE]\n\n"
ERROR_EVENT = b'data: {"error":'

Event = dict[str, Any]


def words(num_words: int) -> list[str]:
    """Return words as a model generates them, each with the space before it."""
    return [f" {WORDS[i % len(WORDS)]}" for i in range(num_words)]


@lru_cache(maxsize=256)
def document(endpoint: str, num_words: int) -> bytes:
    """Return the whole response body."""
    return _json(FORMS[endpoint].document(words(num_words)))


@lru_cache(maxsize=256)
def chunks(endpoint: str, num_chunks: int) -> tuple[bytes, ...]:
    """Return the ``num_chunks`` parts of a stream; the first and the last hold several events."""
    form = FORMS[endpoint]
    parts = [form.event(word) for word in words(num_chunks)]
    parts[0] = b"".join(form.opening()) + parts[0]
    parts[-1] += b"".join(form.closing(words(num_chunks)))
    return tuple(parts)


@lru_cache(maxsize=16)
def error(status: int) -> bytes:
    """Return an engine's error body."""
    told = {"message": "the stub was asked to fail", "type": "server_error", "param": None, "code": status}
    return _json({"error": told})


@lru_cache(maxsize=512)
def body(endpoint: str, plan: Plan, is_stream: bool) -> bytes:
    """Return all bytes of a response body; if it breaks off, those before."""
    if plan.status != 200:
        return error(plan.status)
    if not is_stream:
        return document(endpoint, plan.num_chunks)
    return b"".join(chunks(endpoint, plan.num_chunks)[: plan.breaks_after or None])


@dataclass(frozen=True, slots=True)
class Form:
    """Format of one endpoint's responses.

    Attributes:
        document: returns the whole response.
        event: returns the event of one word.
        opening: yields the events before the first word.
        closing: yields the events after the last word.
    """

    document: Callable[[list[str]], Event]
    event: Callable[[str], bytes]
    opening: Callable[[], Iterator[bytes]]
    closing: Callable[[list[str]], Iterator[bytes]]


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _data(value: Event) -> bytes:
    return b"data: " + _json(value) + b"\n\n"


def _typed(value: Event) -> bytes:
    """Return an event that states its type twice, as newer endpoints do."""
    return f"event: {value['type']}\n".encode() + _data(value)


def _usage(num_words: int) -> Event:
    return {
        "prompt_tokens": NUM_PROMPT_TOKENS,
        "total_tokens": NUM_PROMPT_TOKENS + num_words,
        "completion_tokens": num_words,
    }


def _short_usage(num_words: int) -> Event:
    return {"input_tokens": NUM_PROMPT_TOKENS, "output_tokens": num_words}


def _nothing(*_: object) -> Iterator[bytes]:
    return iter(())


def _chat(kind: str, **fields: Any) -> Event:
    head = {"id": "chatcmpl-5b1c7a42e0f94d0f", "object": kind, "created": 1_790_000_000, "model": "stub"}
    return {**head, **fields}


def _chat_document(said: list[str]) -> Event:
    message = {"role": "assistant", "content": "".join(said), "tool_calls": []}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
    return _chat("chat.completion", choices=[choice], usage=_usage(len(said)))


def _chat_chunk(delta: Event, finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    return _data(_chat("chat.completion.chunk", choices=[choice]))


def _chat_opening() -> Iterator[bytes]:
    yield _chat_chunk({"role": "assistant", "content": ""})


def _chat_closing(said: list[str]) -> Iterator[bytes]:
    yield _chat_chunk({}, "stop")
    yield _data(_chat("chat.completion.chunk", choices=[], usage=_usage(len(said))))
    yield DONE


def _completion(choices: list[Event], **fields: Any) -> Event:
    head = {"id": "cmpl-9d2e61b07c344c1a", "object": "text_completion", "created": 1_790_000_000}
    return {**head, "model": "stub", "choices": choices, **fields}


def _completion_choice(text: str, finish: str | None) -> Event:
    return {"index": 0, "text": text, "logprobs": None, "finish_reason": finish}


def _completion_document(said: list[str]) -> Event:
    return _completion([_completion_choice("".join(said), "stop")], usage=_usage(len(said)))


def _completion_event(word: str) -> bytes:
    return _data(_completion([_completion_choice(word, None)]))


def _completion_closing(said: list[str]) -> Iterator[bytes]:
    yield _data(_completion([_completion_choice("", "stop")]))
    yield _data(_completion([], usage=_usage(len(said))))
    yield DONE


def _response(status: str, said: list[str]) -> Event:
    content = [{"type": "output_text", "text": "".join(said), "annotations": []}]
    message = {"type": "message", "id": "msg_1", "status": status, "role": "assistant", "content": content}
    head = {"id": "resp_3f0a", "object": "response", "created_at": 1_790_000_000, "status": status}
    return {**head, "model": "stub", "output": [message] if said else [], "usage": _short_usage(len(said))}


def _response_document(said: list[str]) -> Event:
    return _response("completed", said)


def _response_event(word: str) -> bytes:
    place = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    return _typed({"type": "response.output_text.delta", **place, "delta": word})


def _response_opening() -> Iterator[bytes]:
    yield _typed({"type": "response.created", "response": _response("in_progress", [])})


def _response_closing(said: list[str]) -> Iterator[bytes]:
    yield _typed({"type": "response.completed", "response": _response("completed", said)})


def _message(said: list[str], stop: str | None) -> Event:
    content = [{"type": "text", "text": "".join(said)}] if said else []
    head = {"id": "msg_01", "type": "message", "role": "assistant", "model": "stub", "content": content}
    return {**head, "stop_reason": stop, "stop_sequence": None, "usage": _short_usage(len(said))}


def _message_document(said: list[str]) -> Event:
    return _message(said, "end_turn")


def _message_event(word: str) -> bytes:
    delta = {"type": "text_delta", "text": word}
    return _typed({"type": "content_block_delta", "index": 0, "delta": delta})


def _message_opening() -> Iterator[bytes]:
    yield _typed({"type": "message_start", "message": _message([], None)})
    block = {"type": "text", "text": ""}
    yield _typed({"type": "content_block_start", "index": 0, "content_block": block})


def _message_closing(said: list[str]) -> Iterator[bytes]:
    yield _typed({"type": "content_block_stop", "index": 0})
    delta = {"stop_reason": "end_turn", "stop_sequence": None}
    yield _typed({"type": "message_delta", "delta": delta, "usage": {"output_tokens": len(said)}})
    yield _typed({"type": "message_stop"})


def _embeddings(said: list[str]) -> Event:
    vector = [round((i * 37 % 101) / 101 - 0.5, 6) for i in range(NUM_DIMENSIONS)]
    data = [{"object": "embedding", "index": 0, "embedding": vector}]
    usage = {"prompt_tokens": NUM_PROMPT_TOKENS, "total_tokens": NUM_PROMPT_TOKENS}
    return {"id": "embd-1", "object": "list", "model": "stub", "data": data, "usage": usage}


def _no_event(word: str) -> bytes:
    raise ValueError(f"{EMBEDDINGS!r} does not stream")


FORMS = {
    CHAT: Form(_chat_document, lambda word: _chat_chunk({"content": word}), _chat_opening, _chat_closing),
    COMPLETIONS: Form(_completion_document, _completion_event, _nothing, _completion_closing),
    RESPONSES: Form(_response_document, _response_event, _response_opening, _response_closing),
    MESSAGES: Form(_message_document, _message_event, _message_opening, _message_closing),
    EMBEDDINGS: Form(_embeddings, _no_event, _nothing, _nothing),
}
