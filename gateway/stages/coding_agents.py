"""Roles of Claude Code's and Codex's agents, from the headers and prompts that they send.

Both identify an agent by an id, which is not a role and never a stage. Codex also sends the purpose of a
sub-agent. Claude Code does not, so its role is derived from the beginning of the system prompt. The part
about this machine and project is cut off, so that a role is one stage in all projects.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from hashlib import blake2b
from typing import Any

from starlette.datastructures import Headers

from agentspec.gateway.discovery.fingerprint import NO_PROMPT
from agentspec.gateway.discovery.masking import masked
from agentspec.gateway.discovery.naming import slug

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
