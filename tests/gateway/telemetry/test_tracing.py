"""Spans, as received by OpenTelemetry's own exporter for tests."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from agentspec.commands.serve.settings import tracing_of
from agentspec.gateway import ApiKeys
from agentspec.gateway.settings import TracingSettings
from agentspec.gateway.telemetry.tracing import Tracing, exporting
from tests.gateway.support.answering import answering
from tests.gateway.support.live import chat_body, post, serving_engine, serving_proxy
from tests.gateway.support.scripted import NUM_PROMPT_TOKENS, STEPS, ScriptedEngine

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE}-{PARENT}-01"


@pytest.fixture
def spans() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def tracing(spans: InMemorySpanExporter) -> Iterator[Tracing]:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    tracing = Tracing(provider)
    yield tracing
    tracing.close()


def only(spans: InMemorySpanExporter) -> ReadableSpan:
    [span] = spans.get_finished_spans()
    return span


@pytest.mark.parametrize("stream", [False, True])
def test_what_a_span_says(spans: InMemorySpanExporter, tracing: Tracing, stream: bool) -> None:
    keys = ApiKeys.parse(["k=acme"])
    body = chat_body(stream=stream, stream_options={"include_usage": True}) if stream else chat_body()
    with (
        serving_engine(ScriptedEngine()) as engine,
        serving_proxy(engine, settings={"name": "a"}, keys=keys, tracing=tracing) as root,
    ):
        post(root, body, authorization="Bearer k", x_agentspec_stage="flow/plan", x_request_id="r-1")
    span = only(spans)
    told = dict(span.attributes or {})
    assert str(told.pop("gen_ai.response.id")).startswith("chatcmpl-")
    assert (span.name, span.kind) == ("POST /v1/chat/completions", SpanKind.SERVER)
    assert span.parent is None
    assert span.status.status_code is StatusCode.UNSET
    assert told == {
        "http.request.method": "POST",
        "http.route": "/v1/chat/completions",
        "http.response.status_code": 200,
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "scripted",
        "gen_ai.response.model": "scripted",
        "gen_ai.usage.input_tokens": NUM_PROMPT_TOKENS,
        "gen_ai.usage.output_tokens": 2 * len(STEPS),
        "agentspec.request_id": "r-1",
        "agentspec.tenant": "acme",
        "agentspec.stage": "flow/plan",
        "agentspec.stage_source": "header",
        "agentspec.upstream": "a",
        "agentspec.num_retries": 0,
    }


def test_a_trace_goes_through(spans: InMemorySpanExporter, tracing: Tracing) -> None:
    with answering() as (engine, seen), serving_proxy(engine, tracing=tracing) as root:
        post(root, chat_body(), traceparent=TRACEPARENT, tracestate="vendor=1")
    span = only(spans)
    assert span.context is not None
    assert span.parent is not None
    assert f"{span.context.trace_id:032x}" == TRACE
    assert f"{span.parent.span_id:016x}" == PARENT
    assert seen[0].headers["traceparent"] == f"00-{TRACE}-{span.context.span_id:016x}-01"
    assert seen[0].headers["tracestate"] == "vendor=1"


@pytest.mark.parametrize("given", ["", "00-not-a-trace", TRACEPARENT + "-future"])
def test_a_bad_trace_context_costs_nothing(spans: InMemorySpanExporter, tracing: Tracing, given: str) -> None:
    with answering() as (engine, seen), serving_proxy(engine, tracing=tracing) as root:
        assert post(root, chat_body(), traceparent=given).status_code == 200
    span = only(spans)
    assert span.parent is None
    assert span.context is not None
    assert f"{span.context.span_id:016x}" in seen[0].headers["traceparent"]


def test_without_tracing_the_clients_context_goes_on_untouched() -> None:
    with answering() as (engine, seen), serving_proxy(engine) as root:
        post(root, chat_body(), traceparent=TRACEPARENT, tracestate="vendor=1")
        post(root, chat_body())
    assert (seen[0].headers["traceparent"], seen[0].headers["tracestate"]) == (TRACEPARENT, "vendor=1")
    assert "traceparent" not in seen[1].headers


def test_failures_and_retries(spans: InMemorySpanExporter, tracing: Tracing, free_port: int) -> None:
    url = f"http://127.0.0.1:{free_port}"
    retries = {"num_retries": 1, "backoff_s": 0.001}
    with serving_proxy(url, fleet={"retries": retries}, tracing=tracing) as root:
        post(root, chat_body())
    span = only(spans)
    assert span.status.status_code is StatusCode.ERROR
    assert span.attributes is not None
    assert span.attributes["http.response.status_code"] == 502
    assert span.attributes["error.type"] == "502"
    assert span.attributes["agentspec.num_retries"] == 1


def test_nothing_of_what_was_said_and_no_probe(spans: InMemorySpanExporter, tracing: Tracing) -> None:
    with serving_engine(ScriptedEngine()) as engine, serving_proxy(engine, tracing=tracing) as root:
        for path in ("chat/completions", "completions", "responses", "messages"):
            body = chat_body(prompt="pr0mpt", input="pr0mpt", max_tokens=9)
            body["messages"][0]["content"] = "pr0mpt"
            post(root, body, f"/v1/{path}", authorization="Bearer k3y")
        post(root, b'{"pr0mpt')
        httpx.get(f"{root}/v1/models/other?key=k3y")
        httpx.get(f"{root}/health")
        httpx.get(f"{root}/metrics")
    finished = spans.get_finished_spans()
    assert len(finished) == 6
    for span in finished:
        told = span.to_json()
        assert not any(text in told for text in ("pr0mpt", "k3y", "Hello"))


def test_off_unless_somebody_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    assert tracing_of(TracingSettings()) is None
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    tracing = tracing_of(TracingSettings())
    assert tracing is not None
    tracing.close()


def test_spans_reach_a_collector() -> None:
    with answering() as (url, seen), serving_engine(ScriptedEngine()) as engine:
        tracing = exporting(f"{url}/")
        with serving_proxy(engine, tracing=tracing) as root:
            post(root, chat_body())
        tracing.close()
    assert [one.path for one in seen] == ["/v1/traces"]
