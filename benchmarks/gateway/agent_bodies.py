"""Request bodies like those of agents: a system prompt, tools, and messages up to a given size."""

from __future__ import annotations

import json
from typing import Any

from benchmarks.gateway import answers
from benchmarks.gateway.plan import Plan

SYSTEM_BYTES = 2_048
RULE = "Read the question, look at the tables it names, and write one SQL query that answers it. "
TURN = "The last query failed: no such column. These are the tables' first rows and their types again. "


def body(endpoint: str, plan: Plan, *, is_stream: bool, num_bytes: int, number: int = 0) -> bytes:
    """Return about ``num_bytes`` of JSON, with "model" before all text; ``number`` makes bodies differ."""
    fields: dict[str, Any] = {"model": plan.model, **_told(endpoint, f"Question {number}. ")}
    if endpoint != answers.EMBEDDINGS:
        fields["stream"] = is_stream
    if is_stream and endpoint in (answers.CHAT, answers.COMPLETIONS):
        fields["stream_options"] = {"include_usage": True}
    _fill(fields, num_bytes - len(_json(fields)))
    return _json(fields)


def _told(endpoint: str, question: str) -> dict[str, Any]:
    system, tools = _repeated(RULE, SYSTEM_BYTES), [_tool(name) for name in ("run_query", "list_tables")]
    user = [{"role": "user", "content": question}]
    if endpoint == answers.CHAT:
        functions = [{"type": "function", "function": tool} for tool in tools]
        messages = [{"role": "system", "content": system}, *user]
        return {"messages": messages, "tools": functions, "temperature": 0, "max_tokens": 512}
    if endpoint == answers.COMPLETIONS:
        return {"prompt": system + question, "temperature": 0, "max_tokens": 512}
    if endpoint == answers.RESPONSES:
        functions = [{"type": "function", **tool} for tool in tools]
        return {"instructions": system, "input": user, "tools": functions, "max_output_tokens": 512}
    if endpoint == answers.MESSAGES:
        schemas = [{"name": one["name"], "input_schema": one["parameters"]} for one in tools]
        return {"system": system, "messages": user, "tools": schemas, "max_tokens": 512}
    return {"input": question}


def _tool(name: str) -> dict[str, Any]:
    text = {"type": "string", "description": "as the database writes it, without quotes"}
    schema = {"type": "object", "properties": {"database": text, "query": text}, "required": ["database"]}
    return {"name": name, "description": f"{name}: what it returns is shown to you", "parameters": schema}


def _fill(fields: dict[str, Any], num_bytes: int) -> None:
    """Lengthen the last message, or the text field, by ``num_bytes``."""
    text = _repeated(TURN, max(num_bytes, 0))
    if "messages" in fields:
        fields["messages"][-1]["content"] += text
    elif isinstance(fields.get("input"), list):
        fields["input"][-1]["content"] += text
    else:
        name = "input" if "input" in fields else "prompt"
        fields[name] += text


def _repeated(text: str, num_bytes: int) -> str:
    return (text * (num_bytes // len(text) + 1))[:num_bytes]


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
