"""Claude Code and Codex: which of their agents calls, by the headers and prompts that they send.

Both tell an agent from another by an id, which is no role and never a stage. Codex says beside it what a
sub-agent is for. Claude Code does not: there the beginning of the system prompt tells, up to where it begins
to speak of this machine and this project, so that a role is one stage in all of them.
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
CLAUDE_CODE_AGENT = "x-claude-code-agent-id"  # of a sub-agent alone
CODEX = "codex"
CODEX_TURN = "x-codex-turn-metadata"
CODEX_WINDOW = "x-codex-window-id"
CODEX_SUB_AGENT = "x-openai-subagent"  # review, compact, collab_spawn, ...

MANY_PROMPTS = 512  # have their names looked up
ROLE_CHARS = 1024
MAX_SALUTATION_CHARS = 120
DIGEST_BYTES = 2
_PROJECT = re.compile(r"\n# Environment|\nNotes:|<env>|\ngitStatus:")


def claude_code_role(headers: Headers, body: Mapping[str, Any]) -> str | None:
    """``claude_code/main``, or a name for a sub-agent or a small task, such as the session's title."""
    if CLAUDE_CODE_SESSION not in headers:
        return None
    if CLAUDE_CODE_AGENT not in headers and body.get("tools"):
        return f"{CLAUDE_CODE}/{MAIN}"
    prompt = _own_prompt(body.get("system"))
    return f"{CLAUDE_CODE}/{_name(prompt)}" if prompt else None


def codex_role(headers: Headers) -> str | None:
    """``codex/main``, or what it says that a sub-agent or a request is for: ``codex/review``."""
    turn = headers.get(CODEX_TURN)
    if turn is None and CODEX_WINDOW not in headers:
        return None
    return f"{CODEX}/{headers.get(CODEX_SUB_AGENT) or _kind(turn) or MAIN}"


def _own_prompt(system: object) -> str:
    """What this agent alone is told: no line that they all begin with, and nothing of the project."""
    texts = [system] if isinstance(system, str) else []
    for block in system if isinstance(system, list) else ():
        text = block.get("text") if isinstance(block, dict) else None
        if isinstance(text, str) and not text.startswith(NO_PROMPT):
            texts.append(text)
    own = next((text for text in texts if len(text) > MAX_SALUTATION_CHARS), "".join(texts[-1:]))
    return _PROJECT.split(own[:ROLE_CHARS], maxsplit=1)[0]


@lru_cache(maxsize=MANY_PROMPTS)
def _name(prompt: str) -> str:
    """As discovered stages are named: nothing but words of a list and a digest."""
    digest = blake2b(masked(prompt).encode("utf-8", "surrogatepass"), digest_size=DIGEST_BYTES)
    return f"{slug([prompt])}-{digest.hexdigest()}"


def _kind(turn: str | None) -> str | None:
    """Of a request that is no turn of the conversation: ``compaction``."""
    try:
        told = json.loads(turn or "")
    except (ValueError, RecursionError):
        return None
    kind = told.get("request_kind") if isinstance(told, dict) else None
    return kind if isinstance(kind, str) and kind != "turn" else None
