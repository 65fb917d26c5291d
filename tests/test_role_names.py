from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentspec.role_names import role_name, role_stage

UUID = "3f2504e0-4f89-11d3-9a0c-0305e82c3301"


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("planner", "planner"),
        ("trip one/planner", "trip one/planner"),
        (f"planner-{UUID}", "planner"),
        (f"{UUID}:planner", "planner"),
        (f"trip/{UUID}/planner", "trip/planner"),
        ("planner_35250402-bfac-4367-bc51-0305e82c3301", "planner"),
        ("agent_5f2b9c1d7e", "agent"),
        ("run 20241231235959 of planner", "run of planner"),
        ("sql_2", "sql_2"),
        ("iso-27001-auditor", "iso-27001-auditor"),
        ("gpt-4o-2024-08-06 judge", "gpt-4o judge"),
        ("ticket-482131", "ticket"),
        ("reply to jane.doe+x@mail.example.com", "reply to"),
        ("jörg@example.com", None),
        ("call +49 (170) 123-4567", "call"),
        ("host 10.0.0.12 watcher", "host watcher"),
        ("report 2026-11-22", "report"),
        ("2026-11-22T23:10:05Z run", "run"),
        ("v1.2.3", "v1.2.3"),
        ("step 1/2", "step 1/2"),
        ("@mention", "@mention"),
        ("ask@", "ask@"),
        ("a@" * 200 + "b", None),
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


@given(st.uuids().map(str) | st.from_regex(r"[0-9]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", fullmatch=True))
def test_no_part_of_a_uuid_is_left(one: str) -> None:
    assert role_name(f"planner_{one}") == role_name(f"planner {one}") == "planner"
    assert role_name(one.upper()) == ""
