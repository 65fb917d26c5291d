"""Conversion of an engine's deltas to OpenAI's choices, whole or in chunks, and to ``usage``."""

from __future__ import annotations

import codecs
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from agentspec.draft import Source, reported
from agentspec.errors import EngineError
from agentspec.gateway.openai.call_reader import Arguments, CallBegun
from agentspec.gateway.openai.output_reader import Event, OutputReader, Reasoning, Text
from agentspec.generation import GenerationDelta, ThinkTags, TokenLogprob, TopLogprob, TracedStep
from agentspec.stats import SpeculationStats

# vLLM's name, and the one that most clients know
REASONING = ("reasoning", "reasoning_content")


@dataclass(slots=True)
class Choice:
    """The collected deltas of one choice."""

    texts: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: str | None = None
    think_tags: ThinkTags = "unknown"

    def add(self, delta: GenerationDelta) -> None:
        """Add the next delta."""
        self.texts.append(delta.text)
        self.think_tags = delta.think_tags
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

    ``reads_calls``: True to separate tool calls from text. ``max_calls``: further ones are left out.
    ``includes_reasoning``: False to leave the model's reasoning out.
    """

    id_prefix = "chatcmpl"
    object_whole = "chat.completion"
    object_chunk = "chat.completion.chunk"

    def __init__(
        self, *, reads_calls: bool = False, max_calls: int | None = None, includes_reasoning: bool = True
    ) -> None:
        self._reads_calls = reads_calls
        self._max_calls = max_calls
        self._includes_reasoning = includes_reasoning
        self._messages: dict[int, ChatMessage] = {}

    def whole(self, index: int, choice: Choice, has_logprobs: bool) -> dict[str, Any]:
        """Return a choice with a message."""
        said = self._read(index, "".join(choice.texts), choice.think_tags, is_last=True)
        for call in said.get("tool_calls", ()):
            del call["index"]
        return {
            "index": index,
            "message": {"role": "assistant", "content": None if said else "", "refusal": None, **said},
            "logprobs": _chat_logprobs(choice.logprobs) if has_logprobs else None,
            "finish_reason": self._finish_reason(index, choice.finish_reason),
        }

    def opening(self, index: int) -> dict[str, Any] | None:
        """Return the choice with the role, which precedes the text."""
        delta = {"role": "assistant", "content": ""}
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}

    def chunk(self, index: int, delta: GenerationDelta, has_logprobs: bool) -> dict[str, Any] | None:
        """Return the choice with one decode step's text, reasoning and parts of tool calls."""
        reason = finish_reason(delta)
        said = self._read(index, delta.text, delta.think_tags, is_last=reason is not None)
        if not (said or reason or (has_logprobs and delta.logprobs)):
            return None
        return {
            "index": index,
            "delta": said,
            "logprobs": _chat_logprobs(delta.logprobs) if has_logprobs else None,
            "finish_reason": self._finish_reason(index, reason),
        }

    def _read(self, index: int, text: str, think_tags: ThinkTags, *, is_last: bool) -> dict[str, Any]:
        """Return what the text adds to the message of the choice."""
        if not self._reads_calls and think_tags == "unknown":
            return {"content": text} if text else {}
        if index not in self._messages:
            reader = OutputReader(
                reads_calls=self._reads_calls, think_tags=think_tags, max_calls=self._max_calls
            )
            self._messages[index] = ChatMessage(reader, self._includes_reasoning)
        return self._messages[index].add(text, is_last=is_last)

    def _finish_reason(self, index: int, reason: str | None) -> str | None:
        has_called = index in self._messages and self._messages[index].num_calls > 0
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


class ChatMessage:
    """The message of one choice while it is read.

    Attributes:
        num_calls: number of calls that have begun.
    """

    def __init__(self, reader: OutputReader, includes_reasoning: bool) -> None:
        self._reader = reader
        self._includes_reasoning = includes_reasoning
        self.num_calls = 0

    def add(self, text: str, *, is_last: bool) -> dict[str, Any]:
        """Return what ``text`` adds to the message, in the form of a stream's delta: only what there is."""
        added: dict[str, Any] = {}
        for event in self._reader.push(text) + (self._reader.end() if is_last else []):
            self._add(added, event)
        return added if self._includes_reasoning else _without_reasoning(added)

    def _add(self, added: dict[str, Any], event: Event) -> None:
        match event:
            case Text(text):
                added["content"] = added.get("content", "") + text
            case Reasoning(text):
                for name in REASONING:
                    added[name] = added.get(name, "") + text
            case CallBegun(name):
                added.setdefault("tool_calls", []).append(_begun_call(self.num_calls, name))
                self.num_calls += 1
            case Arguments(text):
                self._add_arguments(added.setdefault("tool_calls", []), text)

    def _add_arguments(self, calls: list[dict[str, Any]], text: str) -> None:
        """Add arguments to the call that has begun: in this delta or in one before."""
        if not calls:
            calls.append({"index": self.num_calls - 1, "function": {"arguments": ""}})
        calls[-1]["function"]["arguments"] += text


def _without_reasoning(message: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in message.items() if name not in REASONING}


def _begun_call(index: int, name: str) -> dict[str, Any]:
    function = {"name": name, "arguments": ""}
    return {"index": index, "id": new_call_id(), "type": "function", "function": function}


def new_call_id() -> str:
    """Return a new id of a tool call."""
    return f"call_{uuid.uuid4().hex}"


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


class AnswerUsage:
    """Counts over all prompts and choices of one answer."""

    def __init__(self) -> None:
        self._prompt_tokens: dict[int, int] = {}
        self._num_output_tokens = 0
        self._speculation: list[SpeculationStats] = []
        self._trace: tuple[TracedStep, ...] = ()

    def add(self, prompt_index: int, delta: GenerationDelta) -> None:
        """Count one delta."""
        self._prompt_tokens[prompt_index] = delta.num_prompt_tokens
        self._num_output_tokens += len(delta.token_ids)
        if delta.speculation is not None:
            self._speculation.append(delta.speculation)
            self._trace = delta.trace

    @property
    def num_prompt_tokens(self) -> int:
        """Number of tokens in all prompts."""
        return sum(self._prompt_tokens.values())

    def usage(self) -> dict[str, int]:
        """Return ``usage`` in the form of OpenAI's completions."""
        return {
            "prompt_tokens": self.num_prompt_tokens,
            "completion_tokens": self._num_output_tokens,
            "total_tokens": self.num_prompt_tokens + self._num_output_tokens,
        }

    def responses_usage(self) -> dict[str, Any]:
        """Return ``usage`` in the form of OpenAI's responses. Cached and reasoning tokens are always 0."""
        return {
            "input_tokens": self.num_prompt_tokens,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": self._num_output_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": self.num_prompt_tokens + self._num_output_tokens,
        }

    def metrics(self) -> dict[str, Any]:
        """Return the body's ``metrics`` member in vLLM's form; empty unless there was exactly one choice."""
        if len(self._speculation) != 1:
            return {}
        figures = describe_speculation(self._speculation[0])
        if self._trace:
            figures["steps"] = [step.describe() for step in self._trace]
        return {"metrics": {"speculative_decoding": figures}}


def describe_speculation(stats: SpeculationStats) -> dict[str, Any]:
    """Return vLLM's per-request figures, extended by counts per source.

    ``mean_acceptance_length`` is the number of output tokens after the first one, per decode step.
    """
    steps, drafted, accepted = stats.num_steps, stats.num_draft_tokens, stats.num_accepted_tokens
    return {
        "num_spec_steps": steps,
        "num_draft_tokens": drafted,
        "num_accepted_draft_tokens": accepted,
        "mean_acceptance_length": (steps + accepted) / steps if steps else 0.0,
        "draft_acceptance_rate": accepted / drafted if drafted else 0.0,
        "draft_tokens_by_source": _by_name(stats.drafted_by_source),
        "accepted_tokens_by_source": _by_name(stats.accepted_by_source),
    }


def _by_name(counts: dict[Source, int]) -> dict[str, int]:
    return {source.name.lower(): counts.get(source, 0) for source in reported(counts)}
