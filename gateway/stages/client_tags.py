"""Stages and sessions that other projects' routers and agents name, in the body or in headers.

vllm-router reads ``vllm_xargs.agentic_context`` and ``agent_hint``, NVIDIA Dynamo reads ``nvext``. All are
hints: a value of the wrong type or length is skipped. A body without them costs a few look-ups.

Claude Code and Codex identify an agent by an id, which is not a role and never a stage. Codex also sends the
purpose of a sub-agent. Claude Code does not, so its role is derived from the beginning of the system prompt.
The part about this machine and project is cut off, so that a role is one stage in all projects.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from hashlib import blake2b
from typing import Any, TypeGuard

from starlette.datastructures import Headers

from agentspec.gateway.discovery.fingerprint import NO_PROMPT
from agentspec.gateway.discovery.masking import masked
from agentspec.gateway.discovery.naming import slug
from agentspec.wire import MAX_SESSION_CHARS, XARGS_FIELD

AGENTIC_CONTEXT = "agentic_context"
DYNAMO_FIELD = "nvext"
AGENT_HINT = "agent_hint"

# the widest run first: sub-agents of one run share a session
_SESSIONS = (
    ((XARGS_FIELD, AGENTIC_CONTEXT), ("root_program_id", "session_id", "task_id", "program_id")),
    (
        (DYNAMO_FIELD, "agent_context"),
        ("workflow_id", "parent_session_id", "session_id", "parent_program_id", "program_id"),
    ),
    ((DYNAMO_FIELD, "session_control"), ("session_id",)),
    ((DYNAMO_FIELD, "agent_hints"), ("prefix_id",)),
    ((AGENT_HINT,), ("parent_session_id", "session_id")),
)
_OUTER_FIELDS = (XARGS_FIELD, DYNAMO_FIELD, AGENT_HINT)
MAIN = "main"
CLAUDE_CODE = "claude_code"
CLAUDE_CODE_SESSION = "x-claude-code-session-id"
CLAUDE_CODE_AGENT = "x-claude-code-agent-id"  # only sub-agents send it
CODEX = "codex"
CODEX_TURN = "x-codex-turn-metadata"
CODEX_WINDOW = "x-codex-window-id"
CODEX_SUB_AGENT = "x-openai-subagent"  # review, compact, collab_spawn, ...
MANY_PROMPTS = 512  # size of the cache of names
ROLE_CHARS = 1024
MAX_SALUTATION_CHARS = 120
DIGEST_BYTES = 2
_PROJECT = re.compile(r"\n# Environment|\nNotes:|<env>|\ngitStatus:")


def router_role(body: Mapping[str, Any]) -> str | None:
    """Return the path of agent and sub-agent type in vllm-router's ``agentic_context``."""
    context = _object(body, (XARGS_FIELD, AGENTIC_CONTEXT))
    names = (context.get("agent_type"), context.get("subagent_type"))
    return "/".join(name for name in names if isinstance(name, str) and name) or None


def router_workflow(body: Mapping[str, Any]) -> str | None:
    """Return ``workflow_type`` of vllm-router's context, else ``workflow_type_id`` of Dynamo's."""
    names = (
        _object(body, (XARGS_FIELD, AGENTIC_CONTEXT)).get("workflow_type"),
        _object(body, (DYNAMO_FIELD, "agent_context")).get("workflow_type_id"),
    )
    return next((name for name in names if isinstance(name, str) and name), None)


def router_session(body: Mapping[str, Any]) -> str | None:
    """Return the run that the request belongs to, at most 255 printable characters; None if it names none."""
    if body.keys().isdisjoint(_OUTER_FIELDS):
        return None
    return next((value for value in _session_values(body) if is_session(value)), None)


def is_session(value: object) -> TypeGuard[str]:
    """True if ``value`` is a session's id: 1 to 255 printable characters."""
    return isinstance(value, str) and 0 < len(value) <= MAX_SESSION_CHARS and value.isprintable()


def _session_values(body: Mapping[str, Any]) -> Iterator[object]:
    for path, names in _SESSIONS:
        found = _object(body, path)
        for name in names:
            yield found.get(name)


def _object(body: Mapping[str, Any], path: tuple[str, ...]) -> Mapping[str, Any]:
    """Return the JSON object at ``path``; an empty one if there is none."""
    found: object = body
    for name in path:
        found = found.get(name) if isinstance(found, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def claude_code_role(headers: Headers, body: Mapping[str, Any]) -> str | None:
    """Return ``claude_code/main``, or a name for a sub-agent or a small task, such as the session's title."""
    if CLAUDE_CODE_SESSION not in headers:
        return None
    if CLAUDE_CODE_AGENT not in headers and body.get("tools"):
        return f"{CLAUDE_CODE}/{MAIN}"
    prompt = _own_prompt(body.get("system"))
    return f"{CLAUDE_CODE}/{_name(prompt)}" if prompt else None


def codex_role(headers: Headers) -> str | None:
    """Return ``codex/main``, or the stated purpose of a sub-agent or request, such as ``codex/review``."""
    turn = headers.get(CODEX_TURN)
    if turn is None and CODEX_WINDOW not in headers:
        return None
    return f"{CODEX}/{headers.get(CODEX_SUB_AGENT) or _kind(turn) or MAIN}"


def _own_prompt(system: object) -> str:
    """Return the part of the prompt specific to this agent, without common first line and project details."""
    texts = [system] if isinstance(system, str) else []
    for block in system if isinstance(system, list) else ():
        text = block.get("text") if isinstance(block, dict) else None
        if isinstance(text, str) and not text.startswith(NO_PROMPT):
            texts.append(text)
    own = next((text for text in texts if len(text) > MAX_SALUTATION_CHARS), "".join(texts[-1:]))
    return _PROJECT.split(own[:ROLE_CHARS], maxsplit=1)[0]


@lru_cache(maxsize=MANY_PROMPTS)
def _name(prompt: str) -> str:
    """Return a name like those of discovered stages: words of a fixed list and a digest, no prompt text."""
    digest = blake2b(masked(prompt).encode("utf-8", "surrogatepass"), digest_size=DIGEST_BYTES)
    return f"{slug([prompt])}-{digest.hexdigest()}"


def _kind(turn: str | None) -> str | None:
    """Return the kind of a request that is not a turn of the conversation, such as ``compaction``."""
    try:
        metadata = json.loads(turn or "")
    except (ValueError, RecursionError):
        return None
    kind = metadata.get("request_kind") if isinstance(metadata, dict) else None
    return kind if isinstance(kind, str) and kind != "turn" else None
