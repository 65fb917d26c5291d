"""Features of a request body that identify its stage: system prompt, tool names and response schema.

It reads the bodies of four APIs: chat, completions, responses and messages (Anthropic's). A malformed body
raises no error, but has no features. Long texts are cut to head and tail, which bounds the time. No
other module reads features from bodies.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice
from typing import Any

from agentspec.gateway.discovery.masking import joined, masked
from agentspec.gateway.discovery.naming import roles
from agentspec.role_names import mask_ids

# characters kept at head and tail of a longer text
HEAD_CHARS = 6144
TAIL_CHARS = 2048
# the same for a user's message, which changes more often and so is rarely in the cache
USER_HEAD_CHARS = 3072
USER_TAIL_CHARS = 1024
OPENING_CHARS = 256
MAX_CUE_CHARS = 256
MAX_CUE_WORDS = 3
_IS_LABELLED = re.compile(r"[A-Z][\w-]*(?: [\w#-]+)?:").match
MAX_NAMES = 256
MAX_NAME_CHARS = 128
DIGEST_BYTES = 16

_SYSTEM_ROLES = ("system", "developer")
_TEXT_TYPES = ("text", "input_text")
# the first block that Claude Code sends: a checksum of the request, in plain text
NO_PROMPT = "x-anthropic-billing-header:"


@dataclass(frozen=True, slots=True)
class PromptFeatures:
    """Features of a body that identify its stage.

    Attributes:
        text: the system prompt, or the first user message if there is none; cut.
        is_system: True if ``text`` is the system prompt.
        tools: sorted names of the tools.
        schema: kind, name and field names of the response schema.
        cue: last line of a user's text if the line is a label (``Thought 3:``).
        opening: hash of the beginning of the first user message, which identifies a conversation. Valid in
            this process only.
    """

    text: str
    is_system: bool
    tools: tuple[str, ...]
    schema: str
    cue: str
    opening: int

    def raw_digest(self, key: bytes) -> bytes:
        """Return a digest of the unmasked features."""
        return _digest(key, self.is_system, f"{self.text}\0{self.cue}", self.tools, self.schema)


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Prompt features with the parts masked that change from request to request.

    Attributes:
        digest: digest of all features.
        shape: digest of tools, schema, the role named in the text, and the last line of a user's text if the
            line is a label (``Thought 3:``), since it says which kind of answer follows. Prompts of different
            shapes are never compared.
        words: masked text with single spaces between words; line ends count as words.
        text: ``words`` without line ends.
    """

    digest: bytes
    shape: bytes
    words: str
    text: str
    is_system: bool
    tools: tuple[str, ...]
    schema: str

    @classmethod
    def of(cls, features: PromptFeatures, key: bytes) -> Fingerprint:
        """Compute the fingerprint. The secret ``key`` keeps others from guessing prompts by their digests."""
        words = masked(features.text)
        text = joined(words)
        tools = tuple(mask_ids(name) for name in features.tools)
        cue = masked(features.cue)
        shape = _digest(key, features.is_system, f"{' '.join(roles(words))}{cue}", tools, features.schema)
        digest = _digest(key, features.is_system, f"{text}{cue}", tools, features.schema)
        return cls(digest, shape, words, text, features.is_system, tools, features.schema)


def read_features(body: Mapping[str, Any]) -> PromptFeatures | None:
    """Return the features of a body of any API; None if the body has no features."""
    texts = _Texts.of(body)
    tools = tuple(sorted(set(islice(_tool_names(body), MAX_NAMES))))
    schema = _schema(body)
    if texts.system:
        text = _cut(texts.system, HEAD_CHARS, TAIL_CHARS)
    elif texts.user:
        text = _cut_turns(texts.user)
    elif tools or schema:
        text = ""
    else:
        return None
    is_system = bool(texts.system) or not texts.user
    cue = "" if is_system else _cue(texts.user)
    return PromptFeatures(text, is_system, tools, schema, cue, hash(texts.user[:OPENING_CHARS]))


@dataclass(frozen=True, slots=True)
class _Texts:
    """The system prompt and the first user message; empty if missing."""

    system: str
    user: str

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> _Texts:
        if "messages" in body:
            system, user = _first_texts(body["messages"])
            return cls(_joined(_blocks(body.get("system")), system), user)
        if "input" in body or "instructions" in body:
            given = body.get("input")
            system, user = ("", given) if isinstance(given, str) else _first_texts(given)
            return cls(_joined(_blocks(body.get("instructions")), system), user)
        prompt = body.get("prompt")
        first = prompt[0] if isinstance(prompt, list) and prompt else prompt
        return cls("", first if isinstance(first, str) else "")


def _first_texts(messages: object) -> tuple[str, str]:
    """Return the text of the system messages before the first user message, and of that user message."""
    system: list[str] = []
    for message in messages if isinstance(messages, list) else ():
        if not isinstance(message, dict):
            break
        if message.get("role") in _SYSTEM_ROLES:
            system.append(_blocks(message.get("content")))
        elif message.get("role") == "user":
            return "\n".join(system), _blocks(message.get("content"))
    return "\n".join(system), ""


def _blocks(content: object) -> str:
    """Return the text of a message's content, which is a string or a list of blocks."""
    if isinstance(content, str):
        return content
    texts = []
    for block in content if isinstance(content, list) else ():
        text = block.get("text") if isinstance(block, dict) and block.get("type") in _TEXT_TYPES else None
        if isinstance(text, str) and not text.startswith(NO_PROMPT):
            texts.append(text)
    return "\n".join(texts)


def _joined(first: str, second: str) -> str:
    return f"{first}\n{second}" if first and second else first or second


def _tool_names(body: Mapping[str, Any]) -> Iterator[str]:
    for field in ("tools", "functions"):
        tools = body.get(field)
        for tool in tools if isinstance(tools, list) else ():
            if isinstance(tool, dict):
                function = tool.get("function")
                named = function if isinstance(function, dict) else tool
                name = named.get("name") or tool.get("type")
                if isinstance(name, str):
                    yield name[:MAX_NAME_CHARS]


def _schema(body: Mapping[str, Any]) -> str:
    text = body.get("text")
    given = body.get("response_format") or (text.get("format") if isinstance(text, dict) else None)
    if not isinstance(given, dict) or given.get("type") in (None, "text"):
        return ""
    inner = given.get("json_schema")
    named = inner if isinstance(inner, dict) else given
    schema = named.get("schema")
    fields = schema.get("properties") if isinstance(schema, dict) else None
    names = sorted(islice(fields, MAX_NAMES)) if isinstance(fields, dict) else []
    parts = (given["type"], named.get("name", ""), *names)
    return " ".join(str(part)[:MAX_NAME_CHARS] for part in parts)


def _cue(text: str) -> str:
    _, newline, line = text.rstrip()[-MAX_CUE_CHARS:].rpartition("\n")
    words = line.split()
    return line if newline and line.endswith(":") and len(words) <= MAX_CUE_WORDS else ""


def _cut_turns(text: str) -> str:
    """Cut a user's text. A growing text ends with a turn; its end is left out."""
    last = text.rstrip()[-MAX_CUE_CHARS:].rpartition("\n")[2]
    if _IS_LABELLED(last):
        return text[: USER_HEAD_CHARS + USER_TAIL_CHARS]
    return _cut(text, USER_HEAD_CHARS, USER_TAIL_CHARS)


def _cut(text: str, head: int, tail: int) -> str:
    return text if len(text) <= head + tail else f"{text[:head]}\n{text[-tail:]}"


def _digest(key: bytes, is_system: bool, text: str, tools: tuple[str, ...], schema: str) -> bytes:
    names = "\0".join(tools)
    content = f"{is_system:d}{len(names)} {len(schema)} {names}{schema}{text}"
    return blake2b(content.encode("utf-8", "surrogatepass"), key=key, digest_size=DIGEST_BYTES).digest()
