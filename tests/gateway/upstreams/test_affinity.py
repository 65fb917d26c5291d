from __future__ import annotations

import re
from typing import Any

import pytest

from agentspec.errors import ConfigError
from agentspec.gateway import ApiKeys, Fleet, FleetSettings, UpstreamSettings
from agentspec.wire import AFFINITY_HEADER
from tests.gateway.support.answering import answering
from tests.gateway.support.live import chat_body, post, serving

CALLS: list[dict[str, str]] = [
    {"x_agentspec_stage": "flow/a"},
    {"x_agentspec_stage": "flow/a", "x_agentspec_session": "s1", "x_agentspec_affinity": "forged"},
    {"x_agentspec_stage": "flow/b", "x_agentspec_session": "s1"},
    {"x_agentspec_stage": "flow/b", "x_agentspec_session": "s2"},
]


def sent(header: str = AFFINITY_HEADER, **routing: Any) -> list[str | None]:
    """Return the affinity that an engine gets of each call, and of one that generates nothing."""
    with answering() as (engine, seen):
        upstream = UpstreamSettings(url=engine, affinity_header=header)
        settings = FleetSettings(upstreams=(upstream,), routing=routing)
        with serving(Fleet(settings)) as root:
            for headers in CALLS:
                post(root, chat_body(), **headers)
            forged = {"x_agentspec_affinity": "forged", header.replace("-", "_"): "forged"}
            post(root, {"input": "x"}, "/v1/embeddings", **forged)
    assert header == AFFINITY_HEADER or not any(AFFINITY_HEADER in one.headers for one in seen)
    return [one.headers.get(header) for one in seen]


@pytest.mark.parametrize(
    ("policy", "groups"), [("stage", [0, 0, 1, 1]), ("session", [0, 1, 1, 2]), ("least_load", [None] * 4)]
)
def test_calls_that_belong_together_have_one_affinity(policy: str, groups: list[int | None]) -> None:
    *tagged, untagged = sent(policy=policy)
    assert untagged is None
    names = {name: number for number, name in enumerate(dict.fromkeys(tagged))}
    assert [None if name is None else names[name] for name in tagged] == groups
    assert all(name is None or re.fullmatch("[0-9a-f]{32}", name) for name in tagged)


def test_gateways_with_one_key_send_the_same_and_others_do_not() -> None:
    assert sent() == sent()
    assert sent(affinity_key="k" * 100) == sent(affinity_key="k" * 100)
    assert not set(sent(affinity_key="k")[:-1]) & set(sent()[:-1])


def test_tenants_and_models_never_share_an_affinity() -> None:
    keys = ApiKeys.parse(["one=one", "two=two"])
    with answering() as (engine, seen):
        fleet = Fleet(FleetSettings(upstreams=(UpstreamSettings(url=engine),), routing={"policy": "session"}))
        with serving(fleet, keys=keys) as root:
            for tenant in ("one", "two"):
                for model in ("small", "large"):
                    for session in ({}, {"x_agentspec_session": "s"}):
                        body = chat_body(model=model)
                        post(root, body, authorization=f"Bearer {tenant}", x_agentspec_stage="a", **session)
    assert len({one.headers[AFFINITY_HEADER] for one in seen}) == len(seen) == 8


def test_the_retries_of_a_call_have_its_affinity() -> None:
    with answering(503) as (engine, seen):
        upstream = UpstreamSettings(url=engine)
        with serving(Fleet(FleetSettings(upstreams=(upstream,), retries={"backoff_s": 0.001}))) as root:
            post(root, chat_body())
    assert len(seen) == 3
    assert len({one.headers[AFFINITY_HEADER] for one in seen}) == 1


def test_a_router_may_read_another_header() -> None:
    assert sent("X-Session-ID".lower(), policy="stage") == sent(policy="stage")
    assert (
        UpstreamSettings(url="http://router", affinity_header="X-Session-ID").affinity_header
        == "x-session-id"
    )


def test_the_client_s_own_session_does_not_reach_such_a_router() -> None:
    with answering() as (engine, seen):
        upstream = UpstreamSettings(url=engine, affinity_header="x-session-id")
        with serving(Fleet(FleetSettings(upstreams=(upstream,)))) as root:
            post(root, chat_body(), x_agentspec_stage="a", x_session_id="one")
            post(root, chat_body(), x_agentspec_stage="a", x_session_id="two")
    assert len({one.headers["x-session-id"] for one in seen}) == 1
    assert not {one.headers["x-session-id"] for one in seen} & {"one", "two"}


@pytest.mark.parametrize(
    "name",
    [
        "",
        "host",
        "content-length",
        "authorization",
        "x-",
        "x-a b",
        "x-ä",
        "x-request-id",
        "x-agentspec-stage",
    ],
)
def test_a_header_with_another_meaning_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="name a header for the router alone") as caught:
        UpstreamSettings.at("http://router", affinity_header=name)
    assert repr(name) in str(caught.value)
