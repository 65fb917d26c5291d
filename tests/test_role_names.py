from __future__ import annotations

import pytest

from agentspec.role_names import role_stage

UUID = "3f2504e0-4f89-11d3-9a0c-0305e82c3301"


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("planner", "planner"),
        ("trip one/planner", "trip one/planner"),
        (f"planner-{UUID}", "planner"),
        (f"{UUID}:planner", "planner"),
        (f"trip/{UUID}/planner", "trip/planner"),
        ("agent_5f2b9c1d7e", "agent"),
        ("run 20241231235959 of planner", "run of planner"),
        ("sql_2", "sql_2"),
        (UUID, None),
        ("01ARZ3NDEKTSV4RRFFQ69G5FAV", None),
        ("a//b", None),
        ("", None),
        ("x" * 300, None),
        (" planner", None),
    ],
)
def test_ids_never_become_stages(path: str, expected: str | None) -> None:
    stage = role_stage(path, "acme")
    assert (stage and stage.name) == expected
    assert stage is None or stage.tenant == "acme"
