from __future__ import annotations

import re
from typing import Any

import pytest

from agentspec.gateway import Fleet, FleetSettings, UpstreamSettings
from agentspec.wire import AFFINITY_HEADER
from tests.gateway.support.answering import answering
from tests.gateway.support.live import chat_body, post, serving

CALLS: list[dict[str, str]] = [
    {"x_agentspec_stage": "flow/a"},
    {"x_agentspec_stage": "flow/a", "x_agentspec_session": "s1", "x_agentspec_affinity": "forged"},
    {"x_agentspec_stage": "flow/b", "x_agentspec_session": "s1"},
    {"x_agentspec_stage": "flow/b", "x_agentspec_session": "s2"},
]


def sent(**routing: Any) -> list[str | None]:
    """Return the affinity that an engine gets of each call, and of one that generates nothing."""
    with answering() as (engine, seen):
        settings = FleetSettings(upstreams=(UpstreamSettings(url=engine),), routing=routing)
        with serving(Fleet(settings)) as root:
            for headers in CALLS:
                post(root, chat_body(), **headers)
            post(root, {"input": "x"}, "/v1/embeddings", x_agentspec_affinity="forged")
    return [one.headers.get(AFFINITY_HEADER) for one in seen]


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
