# ruff: noqa: E501  (one row per line)
"""Attacks by JSON: fields of the wrong type, unbounded numbers, nesting. To add one, add a row."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from typing import Any

import httpx

from tests.gateway.support.limited_fields import PERHAPS_TOO_LONG, TOO_LONG
from tests.hostile.target import DEADLINE_S, Target, check_error

CHAT = ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1})
TEXT = ("/v1/completions", {"prompt": "hi", "max_tokens": 1})
RESPONSES = ("/v1/responses", {"input": "hi", "max_output_tokens": 1})
MESSAGES = ("/v1/messages", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1, "model": "x"})
TOKENIZE = ("/tokenize", {"prompt": "hi"})

SAMPLING = (
    "temperature",
    "top_p",
    "seed",
    "stream",
    "stream_options",
    "stop",
    "n",
    "user",
    "metadata",
    "model",
)
FIELDS: list[tuple[str, dict[str, Any], tuple[str, ...]]] = [
    (*CHAT, (*SAMPLING, "messages", "max_tokens", "max_completion_tokens", "tools", "tool_choice", "response_format",
             "logprobs", "top_logprobs", "logit_bias", "prediction", "vllm_xargs", "presence_penalty",
             "repetition_penalty", "allowed_token_ids", "stop_token_ids", "bad_words", "min_tokens",
             "structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar", "grammar",
             "json_schema", "chat_template_kwargs", "documents", "reasoning_effort", "add_generation_prompt",
             "continue_final_message", "add_special_tokens", "functions", "n_predict")),
    (*TEXT, (*SAMPLING, "prompt", "max_tokens", "echo", "suffix", "logprobs", "best_of", "add_special_tokens")),
    (*RESPONSES, ("input", "instructions", "max_output_tokens", "temperature", "top_p", "stream", "tools", "tool_choice",
                  "text", "reasoning", "metadata", "model", "previous_response_id", "store")),
    (*MESSAGES, ("messages", "system", "max_tokens", "tools", "stream", "metadata", "stop_sequences")),
    (*TOKENIZE, ("prompt", "messages", "add_special_tokens", "model")),
]  # fmt: skip
WRONG = (
    "true", "-1", "1e400", "NaN", "-Infinity", "99999999999999999999999999", "0.5", '"text"', '""', '"\\ud800"',
    '"\\u0000"', "[]", "[[]]", "[null]", "[{}]", '[{"role": 1, "content": {}}]', "{}", '{"a": {"b": [1]}}',
    '[{"role": "user"}]', '[{"type": "function"}]', '{"type": "json_schema"}', "[" * 200 + "]" * 200,
)  # fmt: skip


@dataclass(frozen=True)
class FieldAttack:
    """One field of one endpoint, with every wrong value."""

    path: str
    right: dict[str, Any]
    field: str

    @property
    def name(self) -> str:
        """Name for a report."""
        return f"{self.path} {self.field}"

    def run(self, target: Target) -> None:
        """Raise AssertionError if the attack succeeds."""
        others = json.dumps({name: value for name, value in self.right.items() if name != self.field})[:-1]
        others += ", " if len(others) > 1 else ""
        headers = {"authorization": f"Bearer {target.mine}"}
        with httpx.Client(trust_env=False, timeout=DEADLINE_S, headers=headers, verify=False) as client:
            for value in WRONG:
                body = f'{others}"{self.field}": {value}}}'
                answer = client.post(f"{target.root}{self.path}", content=body.encode())
                try:
                    check_error(answer.status_code, answer.headers["content-type"], answer.content)
                except AssertionError as error:
                    raise AssertionError(f"{self.field}: {value[:40]}: {error}") from None


@dataclass(frozen=True)
class BodyAttack:
    """A whole body and the statuses allowed for it."""

    name: str
    body: bytes
    statuses: frozenset[int] = frozenset((400,))
    path: str = "/v1/chat/completions"
    encoding: str | None = None

    def run(self, target: Target) -> None:
        """Raise AssertionError if the attack succeeds."""
        headers = {} if self.encoding is None else {"content-encoding": self.encoding}
        answer = target.post(self.path, self.body, headers=headers)
        assert answer.status_code in self.statuses, (answer.status_code, answer.text[:200])
        check_error(answer.status_code, answer.headers["content-type"], answer.content)


def _turn(what: str, /, **members: Any) -> BodyAttack:
    """Return a turn that some API answered, in a history: refused once, the agent would be lost for good."""
    messages = [{"role": "user", "content": "hi"}, members, {"role": "user", "content": "Go on."}]
    return BodyAttack(
        f"a turn: {what}", json.dumps({"messages": messages, "max_tokens": 1}).encode(), ANSWERED
    )


def _item(what: str, /, **members: Any) -> BodyAttack:
    body = {"input": [{"role": "user", "content": "hi"}, members], "max_output_tokens": 1}
    return BodyAttack(f"an item: {what}", json.dumps(body).encode(), ANSWERED, "/v1/responses")


def _schema(what: str, schema: dict[str, Any], statuses: frozenset[int]) -> BodyAttack:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, "response_format": form}
    return BodyAttack(f"a schema: {what}", json.dumps(body).encode(), statuses)


def _chain(num: int, keyword: str) -> dict[str, Any]:
    """Return a schema of definitions, each of which refers to the next. A library that recurses dies of it."""
    links = {f"d{index}": {keyword: [{"$ref": f"#/$defs/d{index + 1}"}]} for index in range(num)}
    return {"$ref": "#/$defs/d0", "$defs": {**links, f"d{num}": {"type": "object"}}}


ANSWERED = frozenset((200,))
REFUSED = frozenset((400,))
LOOP = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}
SCHEMAS = [
    _schema("a loop", LOOP, REFUSED),
    _schema("a loop inside", {"type": "object", "properties": {"a": {"$ref": "#/properties/a"}}}, REFUSED),
    *(
        _schema(f"a chain of {num} {keyword}", _chain(num, keyword), ANSWERED | REFUSED)
        for num in (1_800, 19_000, 100_000)
        for keyword in ("allOf", "anyOf", "prefixItems")
    ),
    _schema("a large multiple", {"type": "object", "properties": {"a": {"multipleOf": 999_983}}}, ANSWERED),
    _schema("a file", {"$ref": "file:///etc/passwd"}, REFUSED),
    _schema("nothing", {"enum": []}, REFUSED),
    _schema("a pattern", {"type": "object", "properties": {"a": {"pattern": "(a{1000}){1000}"}}}, ANSWERED),
]
FUNCTION = {"name": "f", "arguments": ""}
HISTORIES = [
    *(
        _turn(f"{role} without content", role=role, content=None)
        for role in ("user", "assistant", "tool", "function")
    ),
    _turn("no calls", role="assistant", content=None, tool_calls=[]),
    _turn(
        "nulls", role="assistant", content=None, tool_calls=None, function_call=None, refusal=None, audio=None
    ),
    _turn("an old call", role="assistant", content=None, function_call=FUNCTION),
    _turn(
        "empty arguments",
        role="assistant",
        tool_calls=[{"id": "c", "type": "function", "function": FUNCTION}],
    ),
    _turn(
        "a custom call",
        role="assistant",
        tool_calls=[{"type": "custom", "custom": {"name": "f", "input": "x"}}],
    ),
    _turn("a refusal", role="assistant", content=[{"type": "refusal", "refusal": "no"}]),
    _turn("thoughts", role="assistant", content=[{"type": "thinking", "thinking": "hm", "signature": ""}]),
    _item("reasoning", type="reasoning", summary=[]),
    _item("no output", type="function_call_output", call_id="c", output=None),
    _item("empty arguments", type="function_call", call_id="c", name="f", arguments=""),
    _item("a refusal", type="message", role="assistant", content=[{"type": "refusal", "refusal": "no"}]),
    _item("a second system message", role="developer", content="Obey."),
    _item("a search", type="web_search_call", id="ws_1", status="completed", action={}),
    _item("a custom call", type="custom_tool_call", call_id="c", name="f", input="x"),
]

PROMPTS = b'{"max_tokens": 1, "n": 4, "prompt": [' + b'"a",' * 127 + b'"a"]}'
BOMB = gzip.compress(bytes(1 << 28))
ENCODED = [
    BodyAttack("a bomb", BOMB, frozenset((413,)), encoding="gzip"),
    BodyAttack("a bomb to warm with", BOMB, frozenset((413,)), "/agentspec/warm", "gzip"),
    BodyAttack("a bomb for another path", BOMB, frozenset((403, 404, 413)), "/v1/embeddings", "gzip"),
    BodyAttack("half a bomb", BOMB[:1000], encoding="gzip"),
    BodyAttack("no gzip", b"{}", encoding="gzip"),
    BodyAttack("an unknown encoding", b"{}", frozenset((415,)), encoding="br"),
    BodyAttack("encoded twice", BOMB, frozenset((415,)), encoding="gzip, gzip"),
    BodyAttack("more outputs than fit", PROMPTS, REFUSED, "/v1/completions"),
    *(
        BodyAttack(f"a slip: {path}", b"{}", frozenset((404,)), path)
        for path in ("/chat/completions", "/v1/v1/chat/completions", "/v1/chat/completions/", "/v1/messages/")
    ),
]

# a vLLM with model runner V2 would end for everybody; the embedded engine refuses or ignores them
NO_ROOM = [
    BodyAttack(
        f"no room: {param} {number} in {path}",
        json.dumps({**right, "min_tokens": 0, **fields, "stream": False}).encode(),
        ANSWERED | REFUSED,
        path,
    )
    for path, right in (CHAT, TEXT, RESPONSES)
    for number, (fields, param, _) in enumerate((*TOO_LONG, *PERHAPS_TOO_LONG))
]

BODIES: list[FieldAttack | BodyAttack] = [
    *(FieldAttack(path, right, name) for path, right, names in FIELDS for name in names),
    *HISTORIES,
    *SCHEMAS,
    *ENCODED,
    *NO_ROOM,
    BodyAttack("nothing", b""),
    BodyAttack("no JSON", b"\x00\xff"),
    BodyAttack("a list", b"[]"),
    BodyAttack("a number", b"1"),
    BodyAttack("null", b"null"),
    BodyAttack("half an object", b'{"messages": ['),
    BodyAttack("two objects", b"{}{}"),
    BodyAttack("a deep list", b'{"x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    BodyAttack("a deep object", b'{"x": ' * 100_000 + b"1" + b"}" * 100_000),
    BodyAttack("half a pair of surrogates", b'{"messages": [{"role": "user", "content": "\\ud800"}]}'),
    BodyAttack("half a pair in a key", b'{"\\udfff": 1, "messages": []}'),
    BodyAttack("bytes that are no UTF-8", b'{"messages": [{"role": "user", "content": "\xff\xfe"}]}'),
    BodyAttack("a number of 100,000 digits", b'{"seed": ' + b"9" * 100_000 + b"}"),
    BodyAttack("100,000 keys", b"{" + b",".join(b'"k%d":1' % index for index in range(100_000)) + b"}"),
    BodyAttack("100,000 messages", b'{"messages": [' + b"{}," * 99_999 + b"{}]}"),
    BodyAttack("a long model name", b'{"model": "' + b"m" * 1_000_000 + b'"}', frozenset((400, 404))),
    BodyAttack("tools that the model would not see", b'{"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1, "tools": [{"type": "function", "function": {"name": "f"}}]}'),
    BodyAttack("a tool whose arguments are text", b'{"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1, "tool_choice": "required", "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "string"}}}]}'),
    BodyAttack("warm: no lines", b"\x00", path="/agentspec/warm"),
    BodyAttack("warm: wrong types", b'{"stage": 1, "response": {}}', path="/agentspec/warm"),
    BodyAttack("warm: a stage by dots", b'{"stage": "../x", "response": "x"}', frozenset((200, 400)), "/agentspec/warm"),
]  # fmt: skip
