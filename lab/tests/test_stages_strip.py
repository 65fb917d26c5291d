"""The proxy that strips tags, and discovery of the example's stages without them."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from openai import AsyncOpenAI

from agentspec.adapters.openai import agentspec_headers
from agentspec.gateway.discovery.service import Discovery
from examples.agentic_sql.database import open_all
from examples.agentic_sql.pipelines import Tagged
from examples.agentic_sql.question_set import held_out
from lab.stages import strip
from lab.stages.report import LEAST_ARI
from lab.stages.stripper import Findings
from tests.examples.support.stage_engine import PromptEngine
from tests.gateway.support.live import chat_body, post, serving_engine
from tests.gateway.support.scripted import STEPS, ScriptedEngine

NUM_QUESTIONS = 40


@pytest.fixture
def engine() -> ScriptedEngine:
    return ScriptedEngine()


@pytest.fixture
def findings() -> Findings:
    return Findings()


@pytest.fixture
def proxy(engine: ScriptedEngine, findings: Findings) -> Iterator[str]:
    """Run the proxy in front of a gateway in front of the engine, and yield its root URL."""
    with serving_engine(engine, discovery=Discovery()) as url, strip.running(url, 0, findings) as base_url:
        yield base_url.removesuffix("/v1")


def test_what_names_the_stage_goes_and_the_rest_stays(
    engine: ScriptedEngine, findings: Findings, proxy: str
) -> None:
    headers = agentspec_headers("team/plan", "run-1", max_draft=3)
    answer = post(proxy, chat_body(temperature=0.5), **headers)
    assert answer.json()["choices"][0]["message"]["content"] == "".join(STEPS)
    [request] = engine.requests
    assert request.tags.stage.name == "discovered"
    assert (request.tags.session, request.tags.max_draft, request.sampling.temperature) == (None, 3, 0.5)
    [call] = findings.calls
    assert (call.told.stage, call.found, call.source) == ("team/plan", "discovered", "fingerprint")


@pytest.mark.parametrize(
    ("path", "fields", "headers"),
    [
        ("/stages/team/plan/v1/chat/completions", {}, {}),
        ("/v1/chat/completions", {"metadata": {"agentspec_stage": "team/plan"}}, {}),
        ("/v1/chat/completions", {}, {"baggage": "gen_ai.workflow.name=team,gen_ai.agent.name=plan"}),
        ("/v1/chat/completions", {"metadata": {"langgraph_checkpoint_ns": "team:1|plan:2"}}, {}),
    ],
    ids=["url", "metadata", "baggage", "framework"],
)
def test_every_way_of_telling_is_taken_away_and_is_the_truth(
    findings: Findings, proxy: str, path: str, fields: dict[str, object], headers: dict[str, str]
) -> None:
    assert post(proxy, chat_body(**fields), path, **headers).status_code == 200
    [call] = findings.calls
    assert (call.told.stage, call.source) == ("team/plan", "fingerprint")
    assert call.told.body == chat_body()


def test_a_stream_passes_as_it_comes(findings: Findings, proxy: str) -> None:
    answer = post(proxy, chat_body(stream=True), **agentspec_headers("plan"))
    assert answer.text.endswith("data: [DONE]\n\n")
    assert len(findings.calls) == 1


def test_calls_that_tell_nothing_do_not_count(findings: Findings, proxy: str) -> None:
    post(proxy, chat_body())
    assert post(proxy, chat_body(), x_agentspec_stage="//").status_code == 200  # invalid, but stripped too
    assert (findings.calls, findings.num_silent) == ([], 2)
    assert findings.summary()["ari"] is None


def test_the_examples_stages_are_found_though_nobody_names_them(tmp_path: Path) -> None:
    """Discover the stages while serving, from the first call on, by common parts of the prompts only."""
    databases, engine, findings, discovery = open_all(tmp_path), PromptEngine(), Findings(), Discovery()

    async def drive(base_url: str) -> None:
        async with AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0) as client:
            pipeline = Tagged(client, "scripted", databases)
            for number, question in enumerate(held_out(NUM_QUESTIONS, databases)):
                await pipeline.answer(question.text, f"run-{number}", speculate=True)
                discovery.catch_up()  # scripted answers are faster than discovery's share of a core allows

    with serving_engine(engine, discovery=discovery) as url, strip.running(url, 0, findings) as base_url:
        asyncio.run(drive(base_url))
    summary = findings.summary()
    assert (summary["num_calls"], summary["num_stages"]) == (7 * NUM_QUESTIONS, 7)
    assert summary["share_by_fingerprint"] == 1.0
    assert summary["ari"] >= LEAST_ARI


def test_a_command_is_run_with_the_proxys_url(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A failure of the command is passed on."""
    code = "import sys; print('asked', sys.argv[1].rpartition('/')[2]); sys.exit(3)"
    file = tmp_path / "out" / "line.json"
    options = ["--to", "http://127.0.0.1:9", "--json", str(file)]
    assert strip.main([*options, "--", sys.executable, "-c", code, "{url}"]) == 3
    assert "asked v1" in capfd.readouterr().out
    assert json.loads(file.read_text())["summary"]["num_calls"] == 0
