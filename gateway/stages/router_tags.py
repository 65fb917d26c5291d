"""Tags that routers of other projects define for the body of a request.

vllm-router reads ``vllm_xargs.agentic_context`` and ``agent_hint``, NVIDIA Dynamo reads ``nvext``. All are
hints: a value of the wrong type or length is skipped. A body without them costs a few look-ups.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeGuard

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
