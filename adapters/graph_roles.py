"""Which role of a LangChain or LangGraph program calls, by what its runs carry in metadata and tags.

Knows the names of their fields and nothing else of LangChain. Ids of runs and instances never come out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from agentspec.adapters.headers import is_session
from agentspec.role_names import role_name
from agentspec.wire import METADATA_STAGE

AGENT_FIELD = "lc_agent_name"
NODE_FIELD = "langgraph_node"
PATH_FIELD = "langgraph_checkpoint_ns"  # team:<uuid>|1|writer:<uuid>
THREAD_FIELDS = ("thread_id", "session_id", "conversation_id")  # those that LangSmith knows a thread by
STAGE_TAG = "agentspec:"

_AGENTS_OWN_NODE = "model"  # create_agent calls the model there


def named_stage(metadata: Mapping[str, Any], tags: Iterable[str]) -> str | None:
    """What somebody named on purpose: ``metadata["agentspec_stage"]``, or a tag ``agentspec:<stage>``."""
    named = metadata.get(METADATA_STAGE)
    if named is not None:
        return str(named)
    return next((tag.removeprefix(STAGE_TAG) for tag in tags if tag.startswith(STAGE_TAG)), None)


def role_of(
    metadata: Mapping[str, Any], tags: Iterable[str], num_outer: int | None = None
) -> tuple[str, ...]:
    """The names, from the outside in, that stand for the caller; empty if nothing tells.

    An agent with a name is that name, and what happens inside it is below it: ``writer``, ``writer/tools``.
    Else it is the path of nodes, from the outermost graph in; without a graph the first tag of a person.

    Args:
        metadata: the call's, with what it inherits.
        tags: the call's, with what it inherits.
        num_outer: how many nodes there are around the agent; None = all but the last one.
    """
    agent = agent_of(metadata)
    nodes = nodes_of(metadata)
    if agent is not None:
        inner = nodes[len(nodes) - 1 if num_outer is None else num_outer :] if nodes else []
        names = [agent, *([] if inner == [_AGENTS_OWN_NODE] else inner)]
    else:
        names = nodes or _tags_of_people(tags)[:1]
    parts = (part.strip() for name in names for part in name.split("/"))
    return tuple(role for part in parts if (role := role_name(part)))


def agent_of(metadata: Mapping[str, Any]) -> str | None:
    """The name of the agent that calls, or that is around the caller."""
    name = metadata.get(AGENT_FIELD)
    return name if isinstance(name, str) and name else None


def nodes_of(metadata: Mapping[str, Any]) -> list[str]:
    """The nodes around the caller, from the outside in; a number tells how often a node ran a graph."""
    path = metadata.get(PATH_FIELD)
    if isinstance(path, str) and path:
        return [node.partition(":")[0] for node in path.split("|") if not node.isdigit()]
    node = metadata.get(NODE_FIELD)
    return [node] if isinstance(node, str) and node else []


def thread_of(metadata: Mapping[str, Any]) -> str | None:
    """The conversation that the call belongs to, if it has one that fits a header."""
    thread = next((metadata[field] for field in THREAD_FIELDS if metadata.get(field)), None)
    if thread is None:
        return None
    text = str(thread)
    return text if is_session(text) else None


def _tags_of_people(tags: Iterable[str]) -> list[str]:
    """LangChain's own have a colon: ``seq:step:1``."""
    return [tag for tag in tags if isinstance(tag, str) and ":" not in tag and role_name(tag.strip())]
