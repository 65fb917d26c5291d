from __future__ import annotations

import pytest

from agentspec.adapters.caller import Caller

ID = "3f2504e0-4f89-11d3-9a0c-0305e82c3301"


@pytest.mark.parametrize(
    ("role", "name", "expected"),
    [
        ((), "writer", ("writer",)),
        (("team",), "writer", ("team", "writer")),
        (("team",), " writer/a ", ("team", "writer", "a")),
        (("team",), f"writer-{ID}", ("team", "writer")),
        (("team",), ID, ("team",)),
        (("team",), None, ("team",)),
        (("team", "writer", "a"), "writer", ("team", "writer")),
        (("team", "writer"), "team", ("team",)),
    ],
)
def test_an_agent_at_work_inside_another(
    role: tuple[str, ...], name: str | None, expected: tuple[str, ...]
) -> None:
    assert Caller(role=role).inner(name).role == expected


def test_what_was_named_on_purpose_stays() -> None:
    assert Caller("named", ("team",), "run-1").inner("writer") == Caller("named", ("team", "writer"), "run-1")
