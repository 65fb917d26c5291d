from __future__ import annotations

from typing import Any

import pytest
from starlette.datastructures import Headers

from agentspec.errors import RequestError
from agentspec.gateway.discovery.service import Discovery
from agentspec.gateway.http.context import NO_URL_TAGS, UrlTags
from agentspec.gateway.stages.resolver import StageHints, resolve_stage

HEADER = {"x-agentspec-stage": "from/header"}
BODY = {"metadata": {"agentspec_stage": "from/metadata"}}
BAGGAGE = {"baggage": "gen_ai.workflow.name=from,gen_ai.agent.name=baggage"}


UUID = "3f2504e0-4f89-11d3-9a0c-0305e82c3301"


def resolve(
    headers: dict[str, str],
    url_stage: str | None,
    body: dict[str, Any],
    discovery: Discovery | None = None,
    url_workflow: str | None = None,
) -> tuple[str, str]:
    stage, source = resolve_stage(
        StageHints("acme", Headers(headers), UrlTags(url_stage, url_workflow), body, discovery)
    )
    assert stage.tenant == "acme"
    return stage.name, source


@pytest.mark.parametrize(
    ("headers", "url_stage", "body", "expected"),
    [
        ({**HEADER, **BAGGAGE}, "from/url", BODY, ("from/header", "header")),
        (BAGGAGE, "from/url", BODY, ("from/url", "url")),
        (BAGGAGE, None, BODY, ("from/metadata", "metadata")),
        (BAGGAGE, None, {}, ("from/baggage", "baggage")),
        ({}, None, {}, ("default", "default")),
        ({"x-agentspec-stage": "a/b%20c/caf%C3%A9"}, None, {}, ("a/b c/café", "header")),
        ({"x-agentspec-stage": "a%2Fb"}, None, {}, ("a/b", "header")),
        (
            {},
            None,
            {"metadata": {"agentspec_stage": "50% / café".replace(" / ", "/")}},
            ("50%/café", "metadata"),
        ),
        ({}, None, {"metadata": {"other": "x"}}, ("default", "default")),
        ({}, None, {"metadata": None}, ("default", "default")),
        ({}, None, {"metadata": "text"}, ("default", "default")),
    ],
)
def test_the_first_rung_that_answers(
    headers: dict[str, str], url_stage: str | None, body: dict[str, Any], expected: tuple[str, str]
) -> None:
    assert resolve(headers, url_stage, body) == expected


@pytest.mark.parametrize(
    ("baggage", "name"),
    [
        ("gen_ai.agent.name=planner", "planner"),
        ("gen_ai.workflow.name=trip", "trip"),
        (
            "userId=7, gen_ai.agent.name = planner ; ttl=1 ,gen_ai.workflow.name=trip%20one",
            "trip one/planner",
        ),
        ("gen_ai.agent.name=caf%C3%A9", "café"),
        ("gen_ai.agent.name=", "default"),
        ("gen_ai.agent.name=a%2F%2Fb", "default"),
        ("gen_ai.agent.name=" + "x" * 300, "default"),
        ("nonsense", "default"),
        (f"gen_ai.agent.name=planner-{UUID}", "planner"),
        (f"gen_ai.workflow.name={UUID},gen_ai.agent.name=planner", "planner"),
        (f"gen_ai.agent.name={UUID}", "default"),
    ],
)
def test_baggage_is_a_hint(baggage: str, name: str) -> None:
    assert resolve({"baggage": baggage}, None, {})[0] == name


@pytest.mark.parametrize("value", ["é", "a/", "%80", "", "a" * 256])
def test_a_stated_stage_must_be_right_even_with_others_below(value: str) -> None:
    with pytest.raises(RequestError, match="x-agentspec-stage"):
        resolve({"x-agentspec-stage": value, **BAGGAGE}, "from/url", BODY)


def test_a_plain_path_must_fit_a_header_once_encoded() -> None:
    with pytest.raises(RequestError, match="255"):
        resolve({}, None, {"metadata": {"agentspec_stage": "é" * 50}})


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({"tags": ["user:7", "type:condenser", "type:agent"]}, ("openhands/condenser", "framework")),
        ({"tags": [f"type:{UUID}"]}, ("default", "default")),
        ({"lc_agent_name": "writer", "langgraph_node": "model"}, ("writer", "framework")),
        ({"langgraph_checkpoint_ns": f"team:{UUID}|writer:{UUID}"}, ("team/writer", "framework")),
        ({"checkpoint_ns": f"writer:{UUID}"}, ("writer", "framework")),
        ({"tags": ["production", 7, "type:"]}, ("default", "default")),
        ({"tags": "type:agent", "lc_agent_name": 7, "checkpoint_ns": []}, ("default", "default")),
        ({"lc_agent_name": UUID}, ("default", "default")),
        ({"session_id": "planner", "langgraph_node": "model"}, ("default", "default")),
    ],
)
def test_what_frameworks_send(metadata: dict[str, Any], expected: tuple[str, str]) -> None:
    assert resolve({}, None, {"metadata": metadata}) == expected
    assert resolve(HEADER, None, {"metadata": metadata}) == ("from/header", "header")


@pytest.mark.parametrize(
    ("context", "expected"),
    [
        ({"workflow_type": "sql", "agent_type": "writer", "subagent_type": "fix"}, "sql/writer/fix"),
        ({"agent_type": "writer", "subagent_type": ""}, "writer"),
        ({"agent_type": "writer", "subagent_type": None, "agent_id": "w-1", "program_id": "p"}, "writer"),
        ({"workflow_type": "sql"}, "sql"),
        ({"workflow_type": UUID, "agent_type": 7}, "default"),
        ({"workflow_type": "sql", "agent_type": "a//b"}, "sql"),
        ({"workflow_type": ["sql"], "agent_type": {"a": "b"}, "subagent_type": True}, "default"),
        ({"workflow_type": "x" * 300, "agent_type": "y" * 300}, "default"),
        ({"agent_type": f"writer-{UUID}"}, "writer"),
        ("writer", "default"),
        ([{"agent_type": "writer"}], "default"),
        (None, "default"),
    ],
)
def test_the_context_that_vllm_router_reads(context: object, expected: str) -> None:
    assert resolve({}, None, {"vllm_xargs": {"agentic_context": context}})[0] == expected
    assert resolve({}, None, {"vllm_xargs": context})[0] == "default"


@pytest.mark.parametrize(
    ("nvext", "expected"),
    [
        (
            {"agent_context": {"workflow_type_id": "deep_research", "program_id": "run:planner"}},
            "deep_research",
        ),
        ({"agent_context": {"workflow_type_id": UUID}}, "default"),
        ({"agent_context": {"workflow_type_id": 7}}, "default"),
        ({"agent_context": "deep_research"}, "default"),
        ({"agent_hints": {"osl": 512, "priority": 5, "prefix_id": "p"}}, "default"),
        ("deep_research", "default"),
        ([], "default"),
        (None, "default"),
    ],
)
def test_the_workflow_that_dynamo_reads(nvext: object, expected: str) -> None:
    assert resolve({}, None, {"nvext": nvext})[0] == expected


def test_a_workflow_in_the_body_is_the_last_one_to_count() -> None:
    context = {"workflow_type": "sql", "agent_type": "writer"}
    body = {"vllm_xargs": {"agentic_context": context}, "nvext": {"agent_context": {"workflow_type_id": "w"}}}
    assert resolve({}, None, body) == ("sql/writer", "framework")
    assert resolve({"baggage": "gen_ai.workflow.name=trip"}, None, body) == ("trip/writer", "framework")
    assert resolve({"x-agentspec-workflow": "night"}, None, body) == ("night/writer", "framework")
    assert resolve({**BAGGAGE, **HEADER}, None, body) == ("from/header", "header")
    assert resolve(BAGGAGE, None, body) == ("from/baggage", "baggage")
    assert resolve({}, None, {**body, "metadata": {"lc_agent_name": "planner"}}) == (
        "sql/planner",
        "framework",
    )


@pytest.mark.parametrize(
    ("headers", "body", "expected"),
    [
        ({}, {}, ("night run", "workflow")),
        ({"baggage": "gen_ai.workflow.name=trip"}, {}, ("night run", "workflow")),
        ({"baggage": "gen_ai.agent.name=writer"}, {}, ("night run/writer", "baggage")),
        ({"x-agentspec-workflow": "day"}, {}, ("day", "workflow")),
        ({}, {"metadata": {"lc_agent_name": "writer"}}, ("night run/writer", "framework")),
        (HEADER, {}, ("from/header", "header")),
        ({}, BODY, ("from/metadata", "metadata")),
    ],
)
def test_the_urls_workflow_is_the_prefix_of_a_role(
    headers: dict[str, str], body: dict[str, Any], expected: tuple[str, str]
) -> None:
    assert resolve(headers, None, body, url_workflow="night%20run") == expected


def test_a_malformed_workflow_in_the_url_is_refused() -> None:
    with pytest.raises(RequestError, match="the workflow in the URL"):
        resolve({}, None, {}, url_workflow="a//b")


def test_a_workflow_in_the_body_precedes_the_role_of_the_prompt() -> None:
    body = {
        "messages": [{"role": "system", "content": "Plan."}],
        "nvext": {"agent_context": {"workflow_type_id": "deep_research"}},
    }
    discovery = Discovery(in_background=False)
    assert resolve({}, None, body, discovery) == ("deep_research", "fingerprint")
    discovery.catch_up()
    name, source = resolve({}, None, body, discovery)
    assert (name.startswith("deep_research/plan-"), source) == (True, "fingerprint")
    discovery.close()


def test_an_id_of_an_agent_or_a_session_is_no_stage() -> None:
    names = ("x-claude-code-agent-id", "x-claude-code-session-id", "x-session-id", "x-litellm-session-id")
    assert resolve(dict.fromkeys(names, "planner"), None, {}) == ("default", "default")


def test_the_prompt_is_asked_last() -> None:
    body = {"messages": [{"role": "system", "content": "Plan."}]}
    discovery = Discovery(in_background=False)
    assert resolve({}, None, body, discovery) == ("discovered", "fingerprint")
    discovery.catch_up()
    name, source = resolve({}, None, body, discovery)
    assert (name.startswith("discovered/plan-"), source) == (True, "fingerprint")
    assert resolve(BAGGAGE, None, body, discovery) == ("from/baggage", "baggage")
    assert resolve({}, None, {"prompt": [1, 2]}, discovery) == ("default", "default")
    discovery.close()


WORKFLOW = {"x-agentspec-workflow": "night%20run"}


def test_the_workflow_goes_before_what_is_found() -> None:
    body = {"messages": [{"role": "system", "content": "Plan."}]}
    baggage = {"baggage": "gen_ai.workflow.name=trip"}
    discovery = Discovery(in_background=False)
    assert resolve(WORKFLOW, None, body, discovery) == ("night run", "fingerprint")
    discovery.catch_up()
    found = resolve({}, None, body, discovery)[0].removeprefix("discovered/")
    assert resolve(WORKFLOW, None, body, discovery) == (f"night run/{found}", "fingerprint")
    assert resolve(baggage, None, body, discovery) == (f"trip/{found}", "fingerprint")
    assert resolve({**WORKFLOW, **baggage}, None, body, discovery)[0] == f"night run/{found}"
    (cluster,) = discovery.clusters("acme")
    discovery.name("acme", cluster.id, "my/plan")
    assert resolve(WORKFLOW, None, body, discovery) == ("my/plan", "fingerprint")
    discovery.close()


def test_a_workflow_that_leaves_no_room_for_a_stage_is_the_stage() -> None:
    body = {"messages": [{"role": "system", "content": "Plan."}]}
    discovery = Discovery(in_background=False)
    long = {"x-agentspec-workflow": "a/b/c/d/e/f/g/h"}
    resolve(long, None, body, discovery)
    discovery.catch_up()
    assert resolve(long, None, body, discovery) == ("a/b/c/d/e/f/g/h", "workflow")
    discovery.close()


def test_a_workflow_alone() -> None:
    assert resolve(WORKFLOW, None, {}) == ("night run", "workflow")
    assert resolve({**WORKFLOW, **HEADER}, None, {}) == ("from/header", "header")
    assert resolve({**WORKFLOW, **BAGGAGE}, None, {}) == ("night run/baggage", "baggage")
    body = {"metadata": {"lc_agent_name": "writer"}}
    assert resolve(WORKFLOW, None, body) == ("night run/writer", "framework")


@pytest.mark.parametrize("value", ["é", "a/", "%80", "", "a" * 256])
def test_a_stated_workflow_must_be_right(value: str) -> None:
    with pytest.raises(RequestError, match="x-agentspec-workflow"):
        resolve({"x-agentspec-workflow": value}, None, {})


def test_tenants_share_no_workflow() -> None:
    body = {"messages": [{"role": "system", "content": "Plan."}]}
    discovery = Discovery(in_background=False)
    for tenant in ("one", "two"):
        hints = StageHints(tenant, Headers(WORKFLOW), NO_URL_TAGS, body, discovery)
        resolve_stage(hints)
        discovery.catch_up()
        assert resolve_stage(hints)[0].tenant == tenant
    discovery.close()
