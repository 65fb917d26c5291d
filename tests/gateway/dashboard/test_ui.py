"""The page in a real browser, in front of the embedded engine. Skipped without a browser."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from agentspec.config import DraftConfig
from agentspec.corpus.corpus import open_corpus
from agentspec.engine import EngineConfig, TorchEngine
from agentspec.forest import Forest
from agentspec.gateway import ApiKeys, Discovery, EmbeddedUpstream
from agentspec.models import BUNDLED_MODEL, bundled_model_dir
from examples.agentic_sql import prompts
from tests.gateway.support.live import chat_body, post, serving, serving_app, serving_engine, serving_proxy
from tests.gateway.support.scripted import ScriptedEngine
from tests.gateway.support.tracing_engine import TracingEngine
from tests.support.browser import browser, page

KEY = "s3cret"
QUESTION = "How many orders are there?"
HOSTILE = "flow/<img src=x onerror=document.title='owned'>"


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def root() -> Iterator[str]:
    """Yield a gateway that has served two short workflow runs and one call of a hostile stage."""
    before = torch.get_num_threads()
    config = EngineConfig(
        bundled_model_dir(), BUNDLED_MODEL, threads=1, price=0.2, draft=DraftConfig(mode="tree", max_tokens=8)
    )
    upstream = EmbeddedUpstream(TorchEngine(config, Forest()))
    with serving(
        upstream, keys=ApiKeys.parse([f"{KEY}=acme", "other=bolt", "third=cora"]), admin_key="boss"
    ) as root:
        for session in ("one", "two"):
            for stage in ("agentic_sql/classify", "agentic_sql/extract", "agentic_sql/classify"):
                ask(root, stage, session)
        ask(root, HOSTILE, None)
        yield root
    torch.set_num_threads(before)


def ask(root: str, stage: str, session: str | None, key: str = KEY) -> None:
    tags = {} if session is None else {"x_agentspec_session": session}
    body = {"messages": prompts.classify(QUESTION), "temperature": 0, "max_tokens": 24}
    answer = post(root, body, authorization=f"Bearer {key}", x_agentspec_stage=stage, **tags)
    assert answer.status_code == 200


@pytest.fixture
def tab(chromium: Any, root: str) -> Iterator[Any]:
    """Yield the page after entering the key, with live data."""
    with page(chromium, viewport={"width": 1280, "height": 900}) as tab:
        tab.goto(f"{root}/ui")
        tab.fill("#key-input", KEY)
        tab.click("#key-form button")
        tab.wait_for_selector("#state.live")
        yield tab


def test_the_page_needs_no_key_and_says_what_a_browser_may_do_with_it() -> None:
    with serving_engine(ScriptedEngine(), keys=ApiKeys.parse([KEY])) as root:
        answer = httpx.get(f"{root}/ui", trust_env=False)
        assert httpx.post(f"{root}/ui", trust_env=False).status_code == 405
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy
    assert policy.count("'sha256-") == 2
    assert "://" not in answer.text.replace("http://www.w3.org/2000/svg", "")  # no external resources
    assert "innerHTML" not in answer.text
    assert '<link rel="icon" href="data:' in answer.text  # otherwise browsers request /favicon.ico
    assert "img-src data:;" in policy


def test_a_key_is_asked_for_once(chromium: Any, root: str) -> None:
    with page(chromium) as tab:
        asked: list[str] = []
        broken: list[str] = []
        tab.on("request", lambda request: asked.append(request.url))
        tab.on("console", lambda message: broken.append(message.text))
        tab.on("pageerror", lambda error: broken.append(str(error)))
        tab.goto(f"{root}/ui")
        tab.wait_for_selector("#key")
        assert not tab.is_visible("#trace-form")
        tab.fill("#key-input", "wrong")
        tab.click("#key-form button")
        tab.wait_for_selector("#key-note:has-text('not known')")
        tab.fill("#key-input", "other")
        tab.click("#key-form button")
        tab.wait_for_selector("#state.live")
        assert tab.inner_text("#stages-note") == "No stage has been seen yet."  # stages are another tenant's
        tab.reload()
        tab.wait_for_selector("#state.live")
        assert not tab.is_visible("#key")
        assert tab.is_visible("#trace-form")
        assert not tab.is_visible("#clusters")
    assert all(url.startswith(f"{root}/") for url in asked)
    assert not any("other" in url for url in asked)
    assert all("Failed to load resource" in text for text in broken)  # only the refused requests


def test_stages_and_the_workflow_are_shown_live(tab: Any, root: str) -> None:
    messages: list[tuple[str, str]] = []
    tab.on("console", lambda message: messages.append((message.location.get("url", ""), message.text)))
    names = tab.locator("#stages tbody tr td:first-child").all_inner_texts()
    assert names == ["agentic_sql/classify", "agentic_sql/extract", HOSTILE]
    assert tab.title() == "AgentSpec"
    assert tab.locator("#graph .node").count() == 2
    titles = set(tab.locator("#graph path.edge title").all_text_contents())
    assert titles == {
        "agentic_sql/classify → agentic_sql/extract: 2",
        "agentic_sql/extract → agentic_sql/classify: 2",
    }
    ask(root, "agentic_sql/combine", "one")
    tab.wait_for_selector("#stages td:has-text('agentic_sql/combine')")
    tab.wait_for_selector("#graph text:has-text('combine')")
    (line,) = tab.locator("#stages tr:has-text('agentic_sql/extract')").all_inner_texts()
    assert line.endswith("header")
    assert "KiB (< 1 %)" in line
    # This gateway has no discovery: its 404 for the clusters may arrive before or after the live state.
    assert [text for url, text in messages if url != f"{root}/agentspec/clusters"] == []


def test_an_operator_sees_the_stages_of_all_tenants(chromium: Any, root: str) -> None:
    ask(root, "agentic_sql/classify", None, "third")
    with page(chromium) as tab:
        tab.goto(f"{root}/ui")
        tab.fill("#key-input", "boss")
        tab.click("#key-form button")
        tab.wait_for_selector("#stages td:has-text('cora: agentic_sql/classify')")
        names = tab.locator("#stages tbody tr td:first-child").all_inner_texts()
        assert names[0] == "acme: agentic_sql/classify"
        assert tab.locator("#stages button.name").count() == 0  # this key can't call them
        titles = tab.locator("#graph path.edge title").all_text_contents()
        assert "acme: agentic_sql/classify → acme: agentic_sql/extract: 2" in titles


def test_engines_that_share_outputs_are_shown_to_an_operator(chromium: Any, tmp_path: Path) -> None:
    with closing(open_corpus(str(tmp_path), "v", 100, Forest())) as corpus:
        corpus.start()
        upstream = EmbeddedUpstream(ScriptedEngine(), corpus_figures=lambda: corpus.figures().describe())
        with serving(upstream) as root, page(chromium) as tab:
            tab.goto(f"{root}/ui")
            tab.wait_for_selector("#engines:not([hidden])")
            cells = tab.locator("#engine-rows td").all_inner_texts()
    assert cells == ["embedded", "0", "0", "0", "0", "0.0 s", "0"]


def test_one_request_is_shown_token_by_token(tab: Any) -> None:
    system, user = (message["content"] for message in prompts.classify(QUESTION))
    tab.click("#stages button:has-text('agentic_sql/classify')")
    assert tab.input_value("#trace-stage") == "agentic_sql/classify"
    tab.fill("#trace-system", system)
    tab.fill("#trace-prompt", user)
    tab.fill("#trace-max", "24")
    tab.click("#trace-run")
    tab.wait_for_selector("#trace:not([hidden])")
    assert "per step" in tab.inner_text("#trace-note")
    assert tab.inner_text("#output").startswith('{"database')
    assert tab.locator("#output .token.stage").count() > 0  # the same question was asked before
    first = tab.locator("#steps tr").first.locator("td").all_inner_texts()
    assert first[:3] == ["prompt", "–", "–"]
    assert tab.locator("#steps tr").count() > 1


def test_a_cluster_can_be_named(chromium: Any) -> None:
    discovery = Discovery()
    with serving_engine(ScriptedEngine(), discovery=discovery) as root, page(chromium) as tab:
        for prompt in ("Sum up.", "<b>Fix</b> it."):
            post(root, chat_body(messages=[{"role": "system", "content": prompt}]))
        discovery.catch_up()
        done, waiting = sorted(discovery.clusters("default"), key=lambda cluster: cluster.text, reverse=True)
        discovery.name("default", done.id, "flow/done")
        tab.goto(f"{root}/ui")
        rows = tab.locator("#cluster-rows tr")
        rows.nth(1).wait_for()
        assert "<b>Fix</b> it." in rows.nth(0).inner_text()  # those without a name are first
        assert rows.nth(1).locator("input").input_value() == "flow/done"
        rows.nth(0).locator("input").fill("flow/fix")
        with tab.expect_response("**/agentspec/clusters/**"):
            rows.nth(0).locator("input").press("Enter")
        assert waiting.stage.name == "flow/fix"


def trace(tab: Any, root: str) -> None:
    """Open the page and run a request."""
    tab.goto(f"{root}/ui")
    tab.wait_for_selector("#state.live")
    tab.fill("#trace-prompt", "hi")
    tab.wait_for_selector("#trace-model option", state="attached")
    tab.click("#trace-run")


def test_an_engine_without_steps_and_a_refusal_are_told(chromium: Any) -> None:
    with serving_engine(ScriptedEngine(can_trace=False)) as root, page(chromium) as tab:
        trace(tab, root)
        tab.wait_for_selector("#trace-note:has-text('does not tell its steps')")
        tab.fill("#trace-stage", "bad//stage")
        tab.click("#trace-run")
        tab.wait_for_selector("#trace-note.error:has-text('bad stage segment')")


def test_the_steps_of_an_engine_behind_http_are_fetched(chromium: Any) -> None:
    engine = TracingEngine(num_late=1)
    with serving_app(engine.app) as url, serving_proxy(url) as root, page(chromium) as tab:
        trace(tab, root)
        tab.wait_for_selector("#trace:not([hidden])")
        assert len(engine.asked) == 2  # the first attempt had no trace
        assert tab.inner_text("#trace-note") == (
            "4 tokens in 1 decode steps and the prompt's: 3.00 per step; 2 of 3 draft tokens accepted"
        )
        assert tab.inner_text("#output") == "Hello, wörld!"
        assert tab.locator("#output .token.stage").count() == 2
        assert tab.locator("#steps tr").count() == 2
