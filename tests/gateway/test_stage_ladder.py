from __future__ import annotations

from typing import Any

import pytest
from starlette.datastructures import Headers

from agentspec.errors import RequestError
from agentspec.gateway.discovery import Discovery
from agentspec.gateway.stage_ladder import Signs, resolve_stage

HEADER = {"x-agentspec-stage": "from/header"}
BODY = {"metadata": {"agentspec_stage": "from/metadata"}}
BAGGAGE = {"baggage": "gen_ai.workflow.name=from,gen_ai.agent.name=baggage"}


UUID = "3f2504e0-4f89-11d3-9a0c-0305e82c3301"


def resolve(
    headers: dict[str, str],
    url_stage: str | None,
    body: dict[str, Any],
    discovery: Discovery | None = None,
) -> tuple[str, str]:
    stage, source = resolve_stage(Signs("acme", Headers(headers), url_stage, body, discovery))
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
