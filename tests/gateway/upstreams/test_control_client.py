from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import JSONResponse
from starlette.routing import Route

from agentspec.draft import Source
from agentspec.gateway import ApiKeys, UpstreamSettings
from agentspec.gateway.upstreams import control_client as module
from agentspec.gateway.upstreams.usage import describe_stages, read_figures
from agentspec.stages import StageKey
from agentspec.stats import StageStats
from agentspec.vllm_plugin.control import TOKEN_VARIABLE, Control
from tests.gateway.support.live import TIMEOUT_S, chat_body, post, serving_app, serving_engine, serving_proxy
from tests.gateway.support.scripted import ScriptedEngine
from tests.gateway.support.telemetry import of_stage, scrape

NOTHING = {"age_s": 0.0, "num_stages": 0, "next_offset": None, "stages": []}
FIGURES = {
    "tenant": "default",
    "stage": "flow/a",
    "num_requests": 7,
    "num_steps": 10,
    "num_drafts": 5,
    "num_draft_tokens": 40,
    "num_accepted_tokens": 30,
    "tree_bytes": 12345,
    "accepted_by_source": {"stage": 30, "newer_than_us": 1},
    "newer_than_us": 1,
}


@dataclass
class Workers:
    """A stand-in for vLLM's engine client: answers ``collective_rpc`` as the plugin's workers would.

    While ``is_free`` is cleared it does not answer, as in a long prefill.
    """

    stages: list[dict[str, Any]] = field(default_factory=lambda: [FIGURES])
    asked: list[tuple[str, Any]] = field(default_factory=list)
    age_s: float = 0.0
    is_free: threading.Event = field(default_factory=threading.Event)
    refusal: str | None = None

    @property
    def engine_core(self) -> Any:
        return self

    async def call_utility_all_async(
        self, utility: str, method: str, timeout_s: None, args: tuple[str, str, str], options: None
    ) -> list[list[str | None]]:
        assert method == "agentspec_control"
        command, arguments = args[0], json.loads(args[1])
        self.asked.append((command, arguments))
        await asyncio.to_thread(self.is_free.wait, TIMEOUT_S)
        if self.refusal is not None:
            return [[json.dumps({"error": {"message": self.refusal}})]]
        figures = {"agentspec": "0.1.0", "age_s": self.age_s, "stages": self.stages}
        told = {"stages": figures, "evict": {"freed_bytes": 3}}.get(command, {"did": command})
        return [[None, json.dumps(told)]]


def engine_app(workers: Workers, *, has_plugin: bool = True) -> Starlette:
    """Return a server with the control channel of vLLM's plugin. Its completion has no trace of its own."""

    async def complete(request: Any) -> JSONResponse:
        return JSONResponse({"usage": {"prompt_tokens": 3, "completion_tokens": 2}})

    middleware = [Middleware(Control)] if has_plugin else []
    app = Starlette(routes=[Route("/v1/chat/completions", complete, methods=["POST"])], middleware=middleware)
    app.state.engine_client = workers
    return app


@pytest.fixture
def workers() -> Iterator[Workers]:
    workers = Workers()
    workers.is_free.set()
    yield workers
    workers.is_free.set()


@pytest.fixture
def engine_url(workers: Workers) -> Iterator[str]:
    with serving_app(engine_app(workers)) as url:
        yield url
        workers.is_free.set()  # the app ends once all calls have


def test_the_workers_counters_are_the_figures(workers: Workers, engine_url: str) -> None:
    with serving_proxy(engine_url) as root:
        post(root, chat_body(), x_agentspec_stage="flow/b")
        samples = scrape(root)
        (told,) = httpx.get(f"{root}/agentspec/stages").json()["stages"]
    assert of_stage(samples, "agentspec_requests_total", "flow/a") == 7
    assert of_stage(samples, "agentspec_drafts_total", "flow/a") == 5
    assert of_stage(samples, "agentspec_accepted_tokens_total", "flow/a") == 30
    assert of_stage(samples, "agentspec_accepted_tokens_by_source_total", "flow/a", source="stage") == 30
    assert of_stage(samples, "agentspec_tree_bytes", "flow/a") == 12345
    assert not [key for key in samples if ("stage", "flow/b") in key[1]]
    assert told["acceptance_rate"] == 0.75


def test_an_engine_without_the_plugin_is_asked_once(workers: Workers) -> None:
    with (
        serving_app(engine_app(workers, has_plugin=False)) as engine_url,
        serving_proxy(engine_url) as root,
    ):
        post(root, chat_body(), x_agentspec_stage="flow/b")
        samples = scrape(root)
        answers = [
            httpx.delete(f"{root}/agentspec/stages/a"),
            httpx.post(f"{root}/agentspec/warm", content=b'{"response": "x"}'),
            httpx.post(f"{root}/agentspec/save"),
        ]
    assert of_stage(samples, "agentspec_requests_total", "flow/b") == 1
    assert of_stage(samples, "agentspec_output_tokens_total", "flow/b") == 2
    assert [answer.status_code for answer in answers] == [501] * 3
    assert answers[0].json()["error"]["code"] == "not_supported_by_engine"


def test_a_gateway_behind_is_no_plugin() -> None:
    """A gateway as the engine reports stages too, but only those of one tenant."""
    with serving_engine(ScriptedEngine()) as behind, serving_proxy(behind) as root:
        post(behind, chat_body(), x_agentspec_stage="direct")
        assert not [key for key in scrape(root) if ("stage", "direct") in key[1]]


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a busy machine's workers more time before they count as late."""
    monkeypatch.setattr(module, "PATIENCE_S", TIMEOUT_S)


@pytest.fixture
def never_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FRESH_S", 0.0)
    monkeypatch.setattr(module, "ABSENT_S", 0.0)


@pytest.mark.usefixtures("never_fresh")
def test_an_engine_in_a_long_step_leaves_the_last_known_figures_and_is_asked_once(
    workers: Workers, engine_url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving_proxy(engine_url) as root:
        scrape(root)
        workers.is_free.clear()
        monkeypatch.setattr(module, "PATIENCE_S", 0.1)
        first, second = scrape(root), scrape(root)
        assert len(workers.asked) == 2
        workers.stages = [{**FIGURES, "num_requests": 8}]
        workers.is_free.set()
        monkeypatch.setattr(module, "PATIENCE_S", TIMEOUT_S)
        later = scrape(root)  # by the answer to the call of ``first``, or by one of its own
    for samples in (first, second):
        assert of_stage(samples, "agentspec_requests_total", "flow/a") == 7
    assert of_stage(later, "agentspec_requests_total", "flow/a") == 8
    assert "no figures" not in caplog.text  # their age tells; a busy engine would fill the log


@pytest.mark.usefixtures("never_fresh")
def test_an_engine_that_is_down_and_comes_up(workers: Workers, free_port: int) -> None:
    with serving_proxy(f"http://127.0.0.1:{free_port}") as root:
        assert httpx.get(f"{root}/agentspec/stages").json()["stages"] == []
        assert httpx.delete(f"{root}/agentspec/stages/a").status_code == 502
        with serving_app(engine_app(workers), port=free_port):
            assert of_stage(scrape(root), "agentspec_requests_total", "flow/a") == 7
        assert of_stage(scrape(root), "agentspec_requests_total", "flow/a") == 7
        with serving_app(engine_app(workers, has_plugin=False), port=free_port):
            assert not [key for key in scrape(root) if ("stage", "flow/a") in key[1]]


@pytest.mark.parametrize(
    "told",
    [
        [5],
        [{"tenant": "t"}],
        [{"tenant": "t", "stage": "a//b"}],
        [{"tenant": "t", "stage": "a", "num_steps": -1}],
        [{"tenant": "t", "stage": "a", "num_steps": "1"}],
        [{"tenant": "t", "stage": "a", "accepted_by_source": {"stage": None}}],
    ],
)
def test_nonsense_is_no_figure(told: list[Any], workers: Workers, engine_url: str) -> None:
    workers.stages = told
    with serving_proxy(engine_url) as root:
        assert httpx.get(f"{root}/agentspec/stages").json()["stages"] == []


def test_counters_travel_whole() -> None:
    stats = StageStats(
        num_requests=1,
        num_steps=2,
        decode_s=0.5,
        measured_decode_s=0.4,
        plain_decode_s=0.9,
        tree_bytes=3,
        drafted_by_source={Source.TENANT: 4},
    )
    stages = {StageKey("t", ("a", "é")): stats, StageKey("u", ("b",)): StageStats()}
    assert read_figures(json.dumps(describe_stages(stages)).encode()).stages == stages


def test_the_figures_of_a_corpus_travel() -> None:
    corpus = {"num_published": 3, "lag_s": 0.5}
    assert read_figures(json.dumps({"stages": [], "corpus": corpus}).encode()).corpus == corpus
    assert read_figures(b'{"stages": []}').corpus is None


def test_a_stage_on_several_data_parallel_ranks_is_summed_up() -> None:
    other = {**FIGURES, "stage": "flow/b"}
    read = read_figures(json.dumps({"stages": [FIGURES, other, FIGURES]}).encode()).stages
    assert [(stage.name, one.num_requests, one.tree_bytes) for stage, one in read.items()] == [
        ("flow/a", 14, 24690),
        ("flow/b", 7, 12345),
    ]
    assert read[StageKey("default", ("flow", "a"))].accepted_by_source == {Source.STAGE: 60}


def test_what_reaches_the_workers(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, "s3cret")
    options = {"settings": {"control_token": "s3cret"}, "keys": ApiKeys.parse(["ka=acme"])}
    with (
        serving_app(engine_app(workers)) as engine_url,
        serving_proxy(engine_url, admin_key="boss", **options) as root,
    ):

        def ask(method: str, path: str, body: Any, key: str) -> Any:
            headers = {"authorization": f"Bearer {key}"}
            return httpx.request(
                method, f"{root}/agentspec/{path}", json=body, headers=headers, timeout=TIMEOUT_S
            ).json()

        assert ask("DELETE", "stages/flow/%C3%A9", None, "ka") == {"freed_bytes": 3}
        assert ask("POST", "warm", {"stage": "a/b", "response": "x y", "tenant": "bolt"}, "ka") == {
            "did": "warm"
        }
        assert ask("POST", "save", {"path": "/data/forest"}, "boss") == {"did": "save"}
        assert ask("POST", "load", {}, "boss") == {"did": "load"}
    assert workers.asked == [
        ("evict", {"tenant": "acme", "stage": "flow/é"}),
        ("warm", {"tenant": "acme", "outputs": [{"stage": "a/b", "response": "x y"}]}),
        ("save", {"path": "/data/forest"}),
        ("load", {}),
    ]


def test_what_the_workers_refuse_is_told(workers: Workers, engine_url: str) -> None:
    workers.refusal = "where to? None is no path"
    with serving_proxy(engine_url) as root:
        answer = httpx.post(f"{root}/agentspec/save")
    assert (answer.status_code, answer.json()["error"]["message"]) == (400, "where to? None is no path")


def test_the_token(
    workers: Workers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    monkeypatch.setenv(TOKEN_VARIABLE, "s3cret")
    with serving_app(engine_app(workers)) as engine_url:
        for token, status, stages in (("s3cret", 200, 1), ("wr0ng", 500, 0), (None, 500, 0)):
            with serving_proxy(engine_url, settings={"control_token": token}) as root:
                assert httpx.post(f"{root}/agentspec/save").status_code == status
                assert len(httpx.get(f"{root}/agentspec/stages").json()["stages"]) == stages
                assert httpx.get(f"{root}/metrics").status_code == 200
    assert "control token" in caplog.text
    for shown in (caplog.text, repr(UpstreamSettings(url="http://a", control_token="s3cret", api_key="k3y"))):
        assert not any(secret in shown for secret in ("s3cret", "wr0ng", "k3y"))


def test_an_engine_that_answers_something_else() -> None:
    async def odd(request: Any) -> JSONResponse:
        return JSONResponse([1], 200)

    app = Starlette(routes=[Route("/agentspec/{rest:path}", odd, methods=["GET", "POST"])])
    with serving_app(app) as engine_url, serving_proxy(engine_url) as root:
        assert httpx.get(f"{root}/agentspec/stages").json()["stages"] == []
        answer = httpx.post(f"{root}/agentspec/save")
        assert answer.status_code == 500
        assert "nothing of ours" in answer.json()["error"]["message"]
