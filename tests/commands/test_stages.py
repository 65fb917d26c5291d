"""Tests of ``agentspec stages`` against the routes of a real server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from agentspec.cli import main
from agentspec.gateway import ApiKeys, RuntimeConfig
from agentspec.gateway.auth.middleware import AuthMiddleware
from agentspec.gateway.control.cluster_routes import discovery_app
from agentspec.gateway.discovery.service import Discovery
from tests.gateway.support.live import serving_app

PROMPTS = ("Plan.", "Code.", "Test.")


@pytest.fixture
def url() -> Iterator[str]:
    with closing(Discovery(in_background=False)) as discovery:
        for prompt in PROMPTS:
            discovery.stage_of("acme", {"instructions": prompt})
        discovery.catch_up()
        keys = ApiKeys.parse(["acme-key=acme", "bolt-key=bolt"])
        with serving_app(AuthMiddleware(discovery_app(discovery), RuntimeConfig(keys))) as root:
            yield root


@pytest.fixture
def stages(url: str, capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*arguments: str, key: str = "acme-key") -> tuple[int, str]:
        status = main(["stages", *arguments, "--url", url, "--key", key])
        told = capsys.readouterr()
        return status, told.out + told.err

    return run


def ids(stages: Any) -> dict[str, str]:
    told = json.loads(stages("list", "--json")[1])["clusters"]
    return {one["text"]: one["id"] for one in told}


def test_the_list(stages: Any) -> None:
    status, told = stages("list", "--text")
    head, *lines = told.splitlines()
    assert (status, head.split()[:3]) == (0, ["stage", "id", "requests"])
    assert lines[0].startswith("discovered/plan-")
    assert {line.strip() for line in lines[1::2]} == set(PROMPTS)
    assert len(stages("list", key="bolt-key")[1].splitlines()) == 1


def test_a_cluster_is_named_pinned_merged_and_split(stages: Any) -> None:
    found = ids(stages)
    plan, code = found["Plan."], found["Code."]
    assert stages("name", plan, "my_agent/plan") == (0, f"requests of {plan} are sent to my_agent/plan\n")
    assert stages("pin", plan) == (0, "pinned my_agent/plan\n")
    assert "named, pinned" in stages("list")[1]
    assert stages("unpin", plan) == (0, "unpinned my_agent/plan\n")
    assert stages("merge", code, "--into", plan) == (0, f"requests of {code} are sent to my_agent/plan\n")
    status, told = stages("split", plan)
    assert status == 0
    kept, part = (line.split()[0] for line in told.splitlines())
    assert kept == plan != part
    assert stages("name", plan)[1].startswith(f"requests of {plan} are sent to discovered/plan-")


def test_what_the_server_refuses(stages: Any) -> None:
    plan = ids(stages)["Plan."]
    for arguments, reason in (
        (("name", "none", "a"), "there is no cluster 'none'"),
        (("name", plan, "a//b"), "bad stage segment ''"),
        (("merge", plan, "--into", plan), "can't be merged into itself"),
        (("split", plan), "nothing to split"),
        (("pin", "a/b"), "Not Found"),
    ):
        status, told = stages(*arguments)
        assert status == 1
        assert told.startswith("agentspec: error: the server ") or "no AgentSpec gateway" in told
        assert reason in told or "status 404" in told
