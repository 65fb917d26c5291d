"""Which role of a LangChain or LangGraph program calls, by what its runs carry in metadata and tags.

Knows the names of their fields and nothing else of LangChain. Ids of runs and instances never come out.
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
THREAD_FIELDS = ("thread_id", "session_id", "conversation_id")  # those that LangSmith knows a thread by
STAGE_TAG = "agentspec:"

_NODE_TAG = "graph:step:"  # of the run of a node; its parent is the graph
_MODEL_NODES = ("model", "agent")  # create_agent and create_react_agent call the model there
_AGENT_NODE = re.compile(  # theirs, and those of their middleware: names that tell no role
    r"model|agent|tools|pre_model_hook|post_model_hook|generate_structured_response"
    r"|.+\.(?:before|after)_(?:model|agent)"
)


def named_stage(metadata: Mapping[str, Any], tags: Iterable[str]) -> str | None:
    """What somebody named on purpose: ``metadata["agentspec_stage"]``, or a tag ``agentspec:<stage>``."""
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
    """The names, from the outside in, that stand for the caller; empty if nothing tells.

    An agent with a name is that name, and what happens inside it is below it: ``writer``, ``writer/tools``.
    Else it is the path of nodes, from the outermost graph in; without a graph the first tag of a person, or
    the name of the run.

    Args:
        metadata: the call's, with what it inherits.
        tags: the call's, with what it inherits.
        num_outer: how many nodes there are around the agent; None = all but the last one.
        agent: the path that stands for the agent around; None = the name in the metadata.
        run_name: of the run, if somebody gave it one.
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
    """Which kind of name it is that :func:`named_stage` and :func:`role_of` tell, for the log."""
    if METADATA_STAGE in metadata:
        return "LangChain's metadata"
    if any(tag.startswith(STAGE_TAG) for tag in tags):
        return "LangChain's tag"
    if has_agent or AGENT_FIELD in metadata:
        return "LangChain's agent name"
    return "LangChain's node name" if nodes_of(metadata) else "LangChain's tag or run name"


def agent_of(metadata: Mapping[str, Any]) -> str | None:
    """The name of the agent that calls, or that is around the caller."""
    name = metadata.get(AGENT_FIELD)
    return name if isinstance(name, str) and name else None


def is_node_run(tags: Iterable[str]) -> bool:
    """True if the run is a node's: its parent is the graph."""
    return any(tag.startswith(_NODE_TAG) for tag in tags)


def is_agents_node(nodes: Sequence[str]) -> bool:
    """True if the innermost node is one that every agent has: its name tells no role."""
    return bool(nodes) and _AGENT_NODE.fullmatch(nodes[-1]) is not None


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
