from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentspec.config import DraftConfig
from agentspec.stages import StageKey
from agentspec.vllm_plugin.tags import RequestTags, adapted
from agentspec.wire import to_xargs

names = st.text(min_size=1, max_size=20).filter(str.isprintable)


def test_what_the_gateway_writes_is_read_back() -> None:
    stage = StageKey("acme", ("sql", "write"))
    xargs = to_xargs(stage, session="s1", max_draft=5, min_match=3, learn=False)
    assert RequestTags.read(xargs) == RequestTags(stage, None, "s1", 5, 3, False)


def test_an_untagged_request_has_the_defaults() -> None:
    assert RequestTags.read(None) == RequestTags(StageKey("default", ("default",)))


@pytest.mark.parametrize(
    "xargs",
    [
        {"agentspec_stage": "a//b"},
        {"agentspec_stage": 7},
        {"agentspec_stage": "x" * 300},
        {"agentspec_tenant": ["a"]},
        {"agentspec_session": 1.5},
        {"agentspec_max_draft": "many"},
        {"agentspec_max_draft": -1},
        {"agentspec_max_draft": True},
        {"agentspec_min_match": 0},
        {"agentspec_min_match": 1.5},
        {"agentspec_prediction": []},
    ],
)
def test_what_is_malformed_counts_as_absent(xargs: dict[str, object]) -> None:
    assert RequestTags.read(xargs) == RequestTags.read({})


def test_a_bad_stage_or_tenant_leads_to_nobody_elses_trees() -> None:
    assert RequestTags.read({"agentspec_tenant": "acme", "agentspec_stage": "//"}).stage.tenant == "acme"
    tenant = RequestTags.read({"agentspec_tenant": "a\nb", "agentspec_stage": "x"}).stage.tenant
    assert tenant not in ("default", "a", "b")


@pytest.mark.parametrize("value", [4, "4", 4.0])
def test_numbers_may_come_in_any_form_that_vllm_lets_through(value: object) -> None:
    tags = RequestTags.read({"agentspec_max_draft": value, "agentspec_min_match": value})
    assert (tags.max_draft, tags.min_match) == (4, 4)


def test_a_request_only_lowers_the_servers_limit() -> None:
    server = DraftConfig(max_tokens=16)
    assert RequestTags.read({"agentspec_max_draft": 500}).draft(server).max_tokens == 16
    assert RequestTags.read({"agentspec_max_draft": 0}).draft(server).is_off
    assert RequestTags.read({"agentspec_min_match": 9}).draft(server).min_match == 9
    assert RequestTags.read({}).draft(server) == server


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
