from __future__ import annotations

import pytest

from agentspec.config import DraftConfig
from agentspec.stages import StageKey
from agentspec.tags import Tags, subject_hash
from agentspec.wire import XARGS_PREFIX

ACME = StageKey("acme", ("sql", "write"))


@pytest.mark.parametrize(
    "tags",
    [
        Tags(ACME),
        Tags(ACME, session="s1", max_draft=5, min_match=3, learn=False),
        Tags(ACME, max_draft=0, prediction="SELECT", trace="chatcmpl-1"),
        Tags(ACME, subject=subject_hash("acme", "ann")),
    ],
)
def test_the_encoding_is_read_back(tags: Tags) -> None:
    assert Tags.from_xargs(tags.to_xargs()) == tags


def test_only_set_tags_are_encoded() -> None:
    assert Tags(StageKey("acme", ("flow", "é")), stage_source="header").to_xargs() == {
        "agentspec_stage": "flow/é",
        "agentspec_tenant": "acme",
        "agentspec_learn": 1,
    }
    full = Tags(
        StageKey("acme", ("a",)),
        session="s",
        max_draft=0,
        min_match=2,
        learn=False,
        prediction="p",
        trace="t",
    ).to_xargs()
    assert full == {
        "agentspec_stage": "a",
        "agentspec_tenant": "acme",
        "agentspec_session": "s",
        "agentspec_max_draft": 0,
        "agentspec_min_match": 2,
        "agentspec_prediction": "p",
        "agentspec_trace": "t",
        "agentspec_learn": 0,
    }
    assert all(key.startswith(XARGS_PREFIX) for key in full)


def test_an_untagged_request_has_the_defaults() -> None:
    assert Tags.from_xargs(None) == Tags(StageKey("default", ("default",)))


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
        {"agentspec_subject": "ann"},
        {"agentspec_subject": "x" * 32},
        {"agentspec_subject": 5},
    ],
)
def test_what_is_malformed_counts_as_absent(xargs: dict[str, object]) -> None:
    assert Tags.from_xargs(xargs) == Tags.from_xargs({})


def test_a_bad_stage_or_tenant_leads_to_nobody_elses_trees() -> None:
    assert Tags.from_xargs({"agentspec_tenant": "acme", "agentspec_stage": "//"}).stage.tenant == "acme"
    tenant = Tags.from_xargs({"agentspec_tenant": "a\nb", "agentspec_stage": "x"}).stage.tenant
    assert tenant not in ("default", "a", "b")


@pytest.mark.parametrize("value", [4, "4", 4.0])
def test_numbers_may_come_in_any_form_that_vllm_lets_through(value: object) -> None:
    tags = Tags.from_xargs({"agentspec_max_draft": value, "agentspec_min_match": value})
    assert (tags.max_draft, tags.min_match) == (4, 4)


def test_a_request_only_lowers_the_servers_limit() -> None:
    server = DraftConfig(max_tokens=16)
    assert Tags.from_xargs({"agentspec_max_draft": 500}).draft(server).max_tokens == 16
    assert Tags.from_xargs({"agentspec_max_draft": 0}).draft(server).is_off
    assert Tags.from_xargs({"agentspec_min_match": 9}).draft(server).min_match == 9
    assert Tags.from_xargs({}).draft(server) == server


def test_a_person_of_another_tenant_is_another() -> None:
    hashes = {subject_hash(tenant, name) for tenant in ("acme", "bolt") for name in ("ann", "bob")}
    assert len(hashes) == 4
    assert {len(one) for one in hashes} == {16}
