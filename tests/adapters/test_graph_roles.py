from __future__ import annotations

from typing import Any

import pytest

from agentspec.adapters.graph_roles import named_stage, nodes_of, role_of, thread_of

ID = "3f2504e0-4f89-11d3-9a0c-0305e82c3301"


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({}, []),
        ({"langgraph_node": "plan"}, ["plan"]),
        ({"langgraph_node": "plan", "langgraph_checkpoint_ns": f"plan:{ID}"}, ["plan"]),
        ({"langgraph_checkpoint_ns": f"team:{ID}|writer:{ID}"}, ["team", "writer"]),
        ({"langgraph_checkpoint_ns": f"team:{ID}|2|writer:{ID}"}, ["team", "writer"]),
        ({"langgraph_checkpoint_ns": 7, "langgraph_node": ""}, []),
    ],
)
def test_nodes(metadata: dict[str, Any], expected: list[str]) -> None:
    assert nodes_of(metadata) == expected


@pytest.mark.parametrize(
    ("metadata", "tags", "num_outer", "expected"),
    [
        ({}, [], None, ()),
        ({}, ["seq:step:1", "langsmith:hidden", "extract", "other"], None, ("extract",)),
        ({}, [ID, f"planner-{ID}"], None, ("planner",)),
        ({"langgraph_node": "plan"}, ["extract"], None, ("plan",)),
        ({"langgraph_node": "a/b "}, [], None, ("a", "b")),
        ({"lc_agent_name": "writer"}, [], None, ("writer",)),
        ({"lc_agent_name": f"writer-{ID}"}, [], None, ("writer",)),
        ({"lc_agent_name": "writer", "langgraph_checkpoint_ns": f"a:{ID}|model:{ID}"}, [], None, ("writer",)),
        (
            {"lc_agent_name": "writer", "langgraph_checkpoint_ns": f"team:{ID}|summary:{ID}"},
            [],
            1,
            ("writer", "summary"),
        ),
        (
            {"lc_agent_name": "writer", "langgraph_checkpoint_ns": f"tools:{ID}|1|model:{ID}"},
            [],
            0,
            ("writer", "tools", "model"),
        ),
    ],
)
def test_roles(
    metadata: dict[str, Any], tags: list[str], num_outer: int | None, expected: tuple[str, ...]
) -> None:
    assert role_of(metadata, tags, num_outer) == expected


@pytest.mark.parametrize(
    ("metadata", "tags", "expected"),
    [
        ({}, ["a"], None),
        ({}, ["a", "agentspec:flow/a"], "flow/a"),
        ({"agentspec_stage": "flow/b"}, ["agentspec:flow/a"], "flow/b"),
    ],
)
def test_a_stage_is_named_by_metadata_or_a_tag(
    metadata: dict[str, Any], tags: list[str], expected: str | None
) -> None:
    assert named_stage(metadata, tags) == expected


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({}, None),
        ({"thread_id": "t", "session_id": "s"}, "t"),
        ({"thread_id": None, "conversation_id": 7}, "7"),
        ({"thread_id": "é" * 43}, None),
    ],
)
def test_threads(metadata: dict[str, Any], expected: str | None) -> None:
    assert thread_of(metadata) == expected
