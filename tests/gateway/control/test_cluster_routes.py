from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import httpx
import pytest
from starlette.types import ASGIApp

from agentspec.gateway import ApiKeys, RuntimeConfig
from agentspec.gateway.auth.middleware import AuthMiddleware
from agentspec.gateway.control.cluster_routes import discovery_app
from agentspec.gateway.discovery.service import Discovery

KEYS = ApiKeys.parse(["ka=acme", "kb=bolt"])
PROMPTS = ("Plan.", "Code.", "Test.")


@pytest.fixture
def discovery() -> Iterator[Discovery]:
    with closing(Discovery(in_background=False)) as discovery:
        for tenant in ("acme", "bolt"):
            for prompt in PROMPTS:
                discovery.stage_of(tenant, {"instructions": prompt})
        discovery.catch_up()
        yield discovery


@pytest.fixture
def root(discovery: Discovery) -> ASGIApp:
    return AuthMiddleware(discovery_app(discovery), RuntimeConfig(KEYS))


def ask(root: ASGIApp, method: str, path: str = "", body: Any = None, key: str = "ka") -> httpx.Response:
    async def answer() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(root), base_url="http://test") as client:
            headers = {"authorization": f"Bearer {key}"}
            return await client.request(method, f"/agentspec/clusters{path}", json=body, headers=headers)

    return asyncio.run(answer())


def clusters(root: ASGIApp, key: str = "ka") -> dict[str, dict[str, Any]]:
    """Return the clusters by prompt text."""
    return {one["text"]: one for one in ask(root, "GET", key=key).json()["clusters"]}


def test_a_tenant_sees_its_clusters(root: ASGIApp) -> None:
    told = clusters(root)
    assert set(told) == set(PROMPTS)
    plan = told["Plan."]
    assert plan["stage"] == plan["own_stage"] == f"discovered/plan-{plan['id'][:4]}"
    assert (plan["num_requests"], plan["is_named"], plan["is_pinned"]) == (1, False, False)
    assert [one["num_requests"] for one in plan["fingerprints"]] == [1]


def test_a_name_moves_the_traffic_of_its_tenant_alone(root: ASGIApp, discovery: Discovery) -> None:
    plan = clusters(root)["Plan."]["id"]
    told = ask(root, "PATCH", f"/{plan}", {"name": "my_agent/plan", "pinned": True}).json()
    assert (told["stage"], told["is_named"], told["is_pinned"]) == ("my_agent/plan", True, True)
    found = {tenant: discovery.stage_of(tenant, {"instructions": "Plan."}) for tenant in ("acme", "bolt")}
    assert {tenant: stage and stage.path[0] for tenant, stage in found.items()} == {
        "acme": "my_agent",
        "bolt": "discovered",
    }
    assert ask(root, "PATCH", f"/{plan}", {"name": None}).json()["stage"] == told["own_stage"]


def test_merge_and_split(root: ASGIApp) -> None:
    told = clusters(root)
    plan, code, test = (told[prompt]["id"] for prompt in PROMPTS)
    merged = ask(root, "POST", f"/{code}/merge", {"into": plan}).json()
    assert (merged["id"], len(merged["fingerprints"]), merged["num_requests"]) == (plan, 2, 2)
    ask(root, "POST", f"/{test}/merge", {"into": plan})
    leaving = [told["Code."]["fingerprints"][0]["id"]]
    parts = ask(root, "POST", f"/{plan}/split", {"fingerprints": leaving}).json()["clusters"]
    assert [len(part["fingerprints"]) for part in parts] == [2, 1]
    assert len(ask(root, "POST", f"/{plan}/split").json()["clusters"]) == 2
    assert len(ask(root, "GET").json()["clusters"]) == 3


@pytest.mark.parametrize("key", ["", "kc"])
@pytest.mark.parametrize(("method", "path"), [("GET", ""), ("PATCH", "/a"), ("POST", "/a/split")])
def test_a_key_is_needed(root: ASGIApp, method: str, path: str, key: str) -> None:
    assert ask(root, method, path, {}, key=key or "none").status_code == 401


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("PATCH", "/none", {"name": "a"}, 404),
        ("POST", "/none/split", None, 404),
        ("PATCH", "/{plan}", {}, 400),
        ("PATCH", "/{plan}", {"names": "a"}, 400),
        ("PATCH", "/{plan}", {"name": 7}, 400),
        ("PATCH", "/{plan}", {"name": "a//b", "pinned": True}, 400),
        ("PATCH", "/{plan}", {"name": "a", "pinned": "yes"}, 400),
        ("PATCH", "/{plan}", {"name": "a", "pinned": None}, 400),
        ("POST", "/{plan}/merge", {}, 400),
        ("POST", "/{plan}/merge", {"into": "{plan}"}, 400),
        ("POST", "/{plan}/merge", {"into": "none"}, 404),
        ("POST", "/{plan}/split", None, 400),
        ("POST", "/{plan}/split", {"fingerprints": "a"}, 400),
        ("POST", "/{plan}/split", {"fingerprints": [7]}, 400),
    ],
)
def test_a_wrong_call_is_refused_and_changes_nothing(
    root: ASGIApp, method: str, path: str, body: Any, status: int
) -> None:
    before = clusters(root)
    plan = before["Plan."]["id"]
    if body == {"into": "{plan}"}:
        body = {"into": plan}
    answer = ask(root, method, path.format(plan=plan), body)
    assert answer.status_code == status
    assert answer.json()["error"]["message"]
    assert clusters(root) == before


def test_another_tenants_cluster_is_not_there(root: ASGIApp, discovery: Discovery) -> None:
    discovery.stage_of("acme", {"instructions": "Acme's own."})
    discovery.catch_up()
    own = clusters(root)["Acme's own."]["id"]
    assert ask(root, "PATCH", f"/{own}", {"name": "mine"}, key="kb").status_code == 404
    assert clusters(root)["Acme's own."]["is_named"] is False
