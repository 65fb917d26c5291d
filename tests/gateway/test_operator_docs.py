"""The codes, settings and metrics in docs/gateway.md agree with the code."""

from __future__ import annotations

import re
from pathlib import Path

import httpx

from agentspec.gateway.auth.middleware import is_for_tenants
from agentspec.gateway.settings import Settings
from tests.gateway.support.live import chat_body, post, serving_engine, serving_proxy
from tests.gateway.support.scripted import ScriptedEngine

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "gateway.md").read_text()


def test_every_setting_it_names_is_one() -> None:
    for group, name in re.findall(r"`(server|limits|routing|timeouts|retries|health|tracing)\.(\w+)", PAGE):
        assert name in type(getattr(Settings(), group)).model_fields


def test_its_metrics_are_those_there_are() -> None:
    with serving_engine(ScriptedEngine()) as engine, serving_proxy(engine) as root:
        post(root, chat_body())
        text = httpx.get(f"{root}/metrics").text
    told = re.findall(r"^# TYPE (\w+) \w+$", text, re.MULTILINE)
    there = {name.removesuffix("_created") for name in told if not name.endswith("_created")}
    table = PAGE[PAGE.index("## Metrics") : PAGE.index("## Log")]
    named = set(re.findall(r"`(agentspec_\w+)`", table))
    named |= {f"agentspec_upstream{rest}" for rest in re.findall(r"`(_\w+)`", table)}
    assert named == there


def test_tenants_reach_what_it_says_they_do() -> None:
    row = next(line for line in PAGE.splitlines() if "passed on as they are" in line)
    for path in re.findall(r"`(/[\w/]+)`", row):
        assert is_for_tenants("POST", path), path
