from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentspec.stages import StageKey
from agentspec.vllm_plugin.lora import adapted

names = st.text(min_size=1, max_size=20).filter(str.isprintable)


@given(names, names, st.none() | names, st.none() | names)
def test_pairs_of_tenant_and_adapter_never_meet(
    a: str, b: str, first: str | None, second: str | None
) -> None:
    one = adapted(StageKey(a, ("s",)), first)
    other = adapted(StageKey(b, ("s",)), second)
    assert (one.tenant == other.tenant) == ((a, first) == (b, second))


def test_stages_without_a_workflow_share_one() -> None:
    lonely = [adapted(StageKey("a", (name,)), None) for name in ("plan", "act")]
    assert lonely[0].parents == lonely[1].parents != ()
    assert adapted(StageKey("a", ("w", "plan")), None) == StageKey("a", ("w", "plan"))


@pytest.mark.parametrize(
    ("one", "other"),
    [(("a\u241f", "b"), ("a", "\u241fb")), (("a\\", "b"), ("a", "\\b")), (("a\u241fb", None), ("a", "b"))],
)
def test_no_name_climbs_over_the_wall(one: Any, other: Any) -> None:
    first, second = (adapted(StageKey(tenant, ("s",)), adapter) for tenant, adapter in (one, other))
    assert first.tenant != second.tenant


def test_the_wall_itself_may_be_part_of_a_name() -> None:
    wall = "\N{SYMBOL FOR UNIT SEPARATOR}"
    stages = [StageKey(f"a{wall}b", ("s",)), adapted(StageKey("a", ("s",)), "b")]
    assert adapted(stages[0], None).tenant != stages[1].tenant


def test_an_adapter_with_an_unprintable_name_has_a_tenant_too() -> None:
    assert adapted(StageKey("a", ("s",)), "x\ny").tenant.isprintable()
