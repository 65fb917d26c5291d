"""Determine the calling role of a LangChain or LangGraph program from the metadata and tags of its runs.

Depends only on the names of these fields, not on LangChain. Results never contain ids of runs or instances.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agentspec.adapters.headers import is_session
from agentspec.role_names import role_name
from agentspec.wire import METADATA_STAGE

AGENT_FIELD = "lc_agent_name"
NODE_FIELD = "langgraph_node"
PATH_FIELD = "langgraph_checkpoint_ns"  # team:<uuid>|1|writer:<uuid>
THREAD_FIELDS = ("thread_id", "session_id", "conversation_id")  # the fields that LangSmith uses for threads
STAGE_TAG = "agentspec:"

_NODE_TAG = "graph:step:"  # tag of a node's run, which has the graph as parent
_MODEL_NODES = ("model", "agent")  # the nodes where create_agent and create_react_agent call the model
_AGENT_NODE = re.compile(  # nodes of these agents and their middleware: names without a role
    r"model|agent|tools|pre_model_hook|post_model_hook|generate_structured_response"
    r"|.+\.(?:before|after)_(?:model|agent)"
)


def named_stage(metadata: Mapping[str, Any], tags: Iterable[str]) -> str | None:
    """Return the explicit stage: ``metadata["agentspec_stage"]``, or a tag ``agentspec:<stage>``."""
    named = metadata.get(METADATA_STAGE)
    if named is not None:
        return str(named)
    return next((tag.removeprefix(STAGE_TAG) for tag in tags if tag.startswith(STAGE_TAG)), None)


def role_of(
    metadata: Mapping[str, Any],
    tags: Iterable[str],
    num_outer: int | None = None,
    agent: tuple[str, ...] | None = None,
    run_name: str | None = None,
) -> tuple[str, ...]:
    """Return the caller's names, outermost first; empty if unknown.

    A named agent has its name, and its inner nodes are below it: ``writer``, ``writer/tools``. Else the role
    is the path of nodes from the outermost graph inwards. Without a graph it is the first user-defined tag,
    or the name of the run.

    Args:
        metadata: metadata of the call, including inherited entries.
        tags: tags of the call, including inherited ones.
        num_outer: number of nodes around the agent; None = all but the last one.
        agent: path of the enclosing agent; None = the name in the metadata.
        run_name: explicit name of the run, if it has one.
    """
    told = agent_of(metadata)
    agent = agent or (told and (told,)) or None
    nodes = nodes_of(metadata)
    if agent is not None:
        inner = nodes[len(nodes) - 1 if num_outer is None else num_outer :] if nodes else []
        is_model_call = len(inner) == 1 and inner[0] in _MODEL_NODES
        names = [*agent, *([] if is_model_call else inner)]
    else:
        names = nodes or _tags_of_people(tags)[:1] or [run_name or ""]
    parts = (part.strip() for name in names for part in name.split("/"))
    return tuple(role for part in parts if (role := role_name(part)))


def named_by(metadata: Mapping[str, Any], tags: Iterable[str], *, has_agent: bool) -> str:
    """Return the kind of name that :func:`named_stage` and :func:`role_of` found, for the log."""
    if METADATA_STAGE in metadata:
        return "LangChain's metadata"
    if any(tag.startswith(STAGE_TAG) for tag in tags):
        return "LangChain's tag"
    if has_agent or AGENT_FIELD in metadata:
        return "LangChain's agent name"
    return "LangChain's node name" if nodes_of(metadata) else "LangChain's tag or run name"


def agent_of(metadata: Mapping[str, Any]) -> str | None:
    """Return the name of the calling or enclosing agent."""
    name = metadata.get(AGENT_FIELD)
    return name if isinstance(name, str) and name else None


def is_node_run(tags: Iterable[str]) -> bool:
    """Return True if the run is that of a node; its parent is the graph."""
    return any(tag.startswith(_NODE_TAG) for tag in tags)


def is_agents_node(nodes: Sequence[str]) -> bool:
    """Return True if the innermost node is one that every agent has, so that its name is not a role."""
    return bool(nodes) and _AGENT_NODE.fullmatch(nodes[-1]) is not None


def nodes_of(metadata: Mapping[str, Any]) -> list[str]:
    """Return the nodes around the caller, outermost first; skip numbers, which count a node's graph runs."""
    path = metadata.get(PATH_FIELD)
    if isinstance(path, str) and path:
        return [node.partition(":")[0] for node in path.split("|") if not node.isdigit()]
    node = metadata.get(NODE_FIELD)
    return [node] if isinstance(node, str) and node else []


def thread_of(metadata: Mapping[str, Any]) -> str | None:
    """Return the conversation of the call, if it has one that fits a header."""
    thread = next((metadata[field] for field in THREAD_FIELDS if metadata.get(field)), None)
    if thread is None:
        return None
    text = str(thread)
    return text if is_session(text) else None


def _tags_of_people(tags: Iterable[str]) -> list[str]:
    """Return the user-defined tags; LangChain's own contain a colon: ``seq:step:1``."""
    return [tag for tag in tags if isinstance(tag, str) and ":" not in tag and role_name(tag.strip())]
