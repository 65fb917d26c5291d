"""Conversion of an engine's deltas to OpenAI's choices, whole or in chunks. One form per endpoint."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from agentspec.errors import EngineError
from agentspec.gateway.openai.tools import ToolCall, ToolCallReader
from agentspec.generation import GenerationDelta, TokenLogprob, TopLogprob


@dataclass(slots=True)
class Choice:
    """The collected deltas of one choice."""

    texts: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: str | None = None

    def add(self, delta: GenerationDelta) -> None:
        """Add the next delta."""
        self.texts.append(delta.text)
        self.logprobs.extend(delta.logprobs)
        self.finish_reason = finish_reason(delta)


class AnswerForm(Protocol):
    """The answer format of one endpoint."""

    id_prefix: str
    object_whole: str
    object_chunk: str

    def whole(self, index: int, choice: Choice, has_logprobs: bool) -> dict[str, Any]:
        """Return a choice of a whole answer."""

    def opening(self, index: int) -> dict[str, Any] | None:
        """Return the choice of a stream's first chunk, or None if the form has no such chunk."""

    def chunk(self, index: int, delta: GenerationDelta, has_logprobs: bool) -> dict[str, Any] | None:
        """Return the choice of the chunk for ``delta``; None if the chunk would be empty."""


class ChatForm:
    """``chat.completion`` and ``chat.completion.chunk``. One object per answer, as it numbers the tool calls.

    ``reads_calls``: True to separate tool calls from text.
    """

    id_prefix = "chatcmpl"
    object_whole = "chat.completion"
    object_chunk = "chat.completion.chunk"

    def __init__(self, *, reads_calls: bool = False) -> None:
        self._reads_calls = reads_calls
        self._readers: dict[int, ToolCallReader] = {}

    def whole(self, index: int, choice: Choice, has_logprobs: bool) -> dict[str, Any]:
        """Return a choice with a message."""
        text, calls = self._read(index, "".join(choice.texts), is_last=True)
        message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
        if calls:
            message |= {"content": text or None, "tool_calls": [call.chat_form() for call in calls]}
        return {
            "index": index,
            "message": message,
            "logprobs": _chat_logprobs(choice.logprobs) if has_logprobs else None,
            "finish_reason": self._finish_reason(index, choice.finish_reason),
        }

    def opening(self, index: int) -> dict[str, Any] | None:
        """Return the choice with the role, which precedes the text."""
        delta = {"role": "assistant", "content": ""}
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}

    def chunk(self, index: int, delta: GenerationDelta, has_logprobs: bool) -> dict[str, Any] | None:
        """Return the choice with one decode step's text and the tool calls that it completed."""
        reason = finish_reason(delta)
        text, calls = self._read(index, delta.text, is_last=reason is not None)
        if not (text or calls or reason or (has_logprobs and delta.logprobs)):
            return None
        content: dict[str, Any] = {"content": text} if text else {}
        if calls:
            first = self._readers[index].num_calls - len(calls)
            content["tool_calls"] = [
                {"index": num, **call.chat_form()} for num, call in enumerate(calls, first)
            ]
        return {
            "index": index,
            "delta": content,
            "logprobs": _chat_logprobs(delta.logprobs) if has_logprobs else None,
            "finish_reason": self._finish_reason(index, reason),
        }

    def _read(self, index: int, text: str, *, is_last: bool) -> tuple[str, list[ToolCall]]:
        """Return the new text and the new tool calls of the choice."""
        if not self._reads_calls:
            return text, []
        reader = self._readers.setdefault(index, ToolCallReader())
        pieces = reader.push(text) + (reader.flush() if is_last else [])
        texts = [piece for piece in pieces if isinstance(piece, str)]
        return "".join(texts), [piece for piece in pieces if isinstance(piece, ToolCall)]

    def _finish_reason(self, index: int, reason: str | None) -> str | None:
        has_called = index in self._readers and self._readers[index].num_calls > 0
        return "tool_calls" if has_called and reason == "stop" else reason


class ReadText:
    """The text that the tokens of one choice add up to, as far as it was read."""

    def __init__(self) -> None:
        self._num_chars = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, token: TokenLogprob) -> int:
        """Add a token and return where its first character begins; a part of a character, where that does."""
        offset = self._num_chars
        raw = token.text.encode() if token.raw is None else token.raw
        self._num_chars += len(self._decoder.decode(raw))
        return offset


class CompletionForm:
    """``text_completion``. One object per answer, as text offsets continue from chunk to chunk."""

    id_prefix = "cmpl"
    object_whole = "text_completion"
    object_chunk = "text_completion"

    def __init__(self) -> None:
        self._read: dict[int, ReadText] = {}

    def whole(self, index: int, choice: Choice, has_logprobs: bool) -> dict[str, Any]:
        """Return a choice with a text."""
        return {
            "index": index,
            "text": "".join(choice.texts),
            "logprobs": self._logprobs(index, choice.logprobs) if has_logprobs else None,
            "finish_reason": choice.finish_reason,
        }

    def opening(self, index: int) -> dict[str, Any] | None:
        """Return None: the form has no opening chunk."""
        return None

    def chunk(self, index: int, delta: GenerationDelta, has_logprobs: bool) -> dict[str, Any] | None:
        """Return the choice with one decode step's text."""
        if not (delta.text or delta.finish_reason or (has_logprobs and delta.logprobs)):
            return None
        return {
            "index": index,
            "text": delta.text,
            "logprobs": self._logprobs(index, delta.logprobs) if has_logprobs else None,
            "finish_reason": finish_reason(delta),
        }

    def _logprobs(self, index: int, tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
        read = self._read.setdefault(index, ReadText())
        offsets = [read.add(token) for token in tokens]
        return {
            "tokens": [token.text for token in tokens],
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": [_completion_top(token) for token in tokens],
            "text_offset": offsets,
        }


def finish_reason(delta: GenerationDelta) -> str | None:
    """Return OpenAI's finish reason. Raises EngineError if the engine aborted the request."""
    if delta.finish_reason in ("abort", "error"):
        raise EngineError(f"the engine gave this request up: {delta.finish_reason}")
    return delta.finish_reason


def describe_logprobs(tokens: Sequence[TokenLogprob]) -> list[dict[str, Any]]:
    """Describe tokens and their alternatives in the format of chat and responses."""
    return [
        {
            **_chat_logprob(token),
            "top_logprobs": [_chat_logprob(one) for one in token.top],
        }
        for token in tokens
    ]


def _chat_logprobs(tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
    return {"content": describe_logprobs(tokens), "refusal": None}


def _completion_top(token: TokenLogprob) -> dict[str, float]:
    """Return log probabilities by text, including the token itself. Of equal texts, the likelier stays."""
    top: dict[str, float] = {}
    shown: tuple[TopLogprob | TokenLogprob, ...] = (*token.top, token)
    for one in shown:
        top.setdefault(one.text, one.logprob)
    return top


def _chat_logprob(token: TokenLogprob | TopLogprob) -> dict[str, Any]:
    """Describe a token. A special token, which adds no bytes to the text, has those of its name."""
    return {"token": token.text, "logprob": token.logprob, "bytes": list(token.raw or token.text.encode())}
