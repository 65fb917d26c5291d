from __future__ import annotations

from typing import Any

import pytest
from starlette.datastructures import Headers

from agentspec.errors import RequestError
from agentspec.gateway.stage_ladder import Signs, resolve_stage

HEADER = {"x-agentspec-stage": "from/header"}
BODY = {"metadata": {"agentspec_stage": "from/metadata"}}
BAGGAGE = {"baggage": "gen_ai.workflow.name=from,gen_ai.agent.name=baggage"}


def resolve(headers: dict[str, str], url_stage: str | None, body: dict[str, Any]) -> tuple[str, str]:
    stage, source = resolve_stage(Signs("acme", Headers(headers), url_stage, body))
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
