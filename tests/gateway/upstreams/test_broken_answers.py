"""A response that breaks off after its head: log, span and metrics report it with the request id."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from agentspec.errors import EngineError
from agentspec.gateway.call import Outcome
from agentspec.gateway.telemetry.tracing import Tracing
from tests.gateway.support.live import TIMEOUT_S, chat_body, post, serving_engine, serving_proxy
from tests.gateway.support.misbehaving import EVENT, misbehaving
from tests.gateway.support.scripted import ScriptedEngine
from tests.gateway.support.telemetry import lines, scrape

CHAT = "/v1/chat/completions"
BROKEN = "agentspec_gateway_broken_answers_total"
ROOT = Path(__file__).parents[3]
ENGINE = """
import sys
from tests.gateway.support.misbehaving import misbehaving
with misbehaving() as engine:
    print(engine.url, flush=True)
    sys.stdin.read()
"""


@contextmanager
def engine_process() -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Yield a ``misbehaving`` engine in a process of its own."""
    command = [sys.executable, "-c", ENGINE]
    folder = str(ROOT)
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=folder
    ) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


@contextmanager
def stream(root: str, way: str, request_id: str) -> Iterator[Iterator[bytes]]:
    """Yield the parts of a stream that has begun."""
    with httpx.stream(
        "POST",
        f"{root}{CHAT}",
        json=chat_body(stream=True),
        headers={"x-way": way, "x-request-id": request_id},
        timeout=TIMEOUT_S,
        trust_env=False,
    ) as answer:
        parts = answer.iter_raw()
        got = b""
        while EVENT not in got:
            got += next(parts)
        yield parts


def broken(root: str) -> dict[str, float]:
    """Return broken chats by reason. Every reason has a count from the start."""
    counts = {
        dict(labels)["reason"]: value
        for (name, labels), value in scrape(root).items()
        if name == BROKEN and dict(labels)["endpoint"] == CHAT
    }
    assert counts.keys() == set(Outcome) - {Outcome.CLIENT_LEFT}
    return {reason: count for reason, count in counts.items() if count}


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the request ids in warnings about broken responses."""
    return [
        record.fields["request_id"]  # type: ignore[attr-defined]
        for record in caplog.records
        if record.levelno == logging.WARNING and "an answer broke off" in record.getMessage()
    ]


@pytest.fixture(autouse=True)
def level(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


def test_an_engine_that_is_killed(caplog: pytest.LogCaptureFixture) -> None:
    spans, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    tracing = Tracing(provider)
    with engine_process() as (process, url), serving_proxy(url, tracing=tracing) as root:
        with stream(root, "falls silent", "r-1") as parts:
            process.kill()
            assert b"upstream_unavailable" in b"".join(parts)
        assert broken(root) == {"engine_lost": 1}
        text = httpx.get(f"{root}/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0"})
    tracing.close()
    [line] = lines(caplog)
    assert (line["request_id"], line["status"], line["outcome"]) == ("r-1", 200, "engine_lost")
    assert warnings(caplog) == ["r-1"]
    [span] = [one for one in spans.get_finished_spans() if one.name == f"POST {CHAT}"]
    assert span.status.status_code is StatusCode.ERROR
    attributes = dict(span.attributes or {})
    assert (attributes["agentspec.outcome"], attributes["error.type"]) == ("engine_lost", "engine_lost")
    exemplars = [
        sample.exemplar.labels
        for family in text_string_to_metric_families(text.text)
        for sample in family.samples
        if sample.name == BROKEN and sample.exemplar
    ]
    assert exemplars == [{"request_id": "r-1"}]


def test_the_grace_period_is_over(caplog: pytest.LogCaptureFixture) -> None:
    got: list[bytes] = []
    with misbehaving() as engine:
        with serving_proxy(engine.url, grace_s=0.1) as root:
            begun = threading.Event()

            def read() -> None:
                with stream(root, "falls silent", "r-2") as parts:
                    begun.set()
                    got.extend(parts)

            reading = threading.Thread(target=read)
            reading.start()
            assert begun.wait(TIMEOUT_S)
        reading.join(TIMEOUT_S)
    assert b"shutting_down" in b"".join(got)
    [line] = lines(caplog)
    assert (line["request_id"], line["status"], line["outcome"]) == ("r-2", 200, "shut_down")
    assert warnings(caplog) == ["r-2"]


@pytest.mark.parametrize("way", ["dies in the body", "dies in a chunked body"])
def test_half_a_body_is_not_the_clients_doing(caplog: pytest.LogCaptureFixture, way: str) -> None:
    with misbehaving() as engine, serving_proxy(engine.url) as root:
        with pytest.raises(httpx.RemoteProtocolError):
            post(root, chat_body(), x_way=way, x_request_id="r-3")
        assert broken(root) == {"engine_lost": 1}
    [line] = lines(caplog)
    assert (line["status"], line["outcome"]) == (200, "engine_lost")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, chat_body(stream=True)),
        ("/v1/responses", {"model": "scripted", "input": "hi", "stream": True}),
    ],
)
def test_an_embedded_engine_that_fails(
    caplog: pytest.LogCaptureFixture, path: str, body: dict[str, Any]
) -> None:
    with serving_engine(ScriptedEngine(failure=EngineError("broken"))) as root:
        assert post(root, body, path, x_request_id="r-4").status_code == 200
    [line] = lines(caplog)
    assert (line["request_id"], line["status"], line["outcome"]) == ("r-4", 200, "engine_failed")
    assert warnings(caplog) == ["r-4"]


def test_a_client_that_leaves_breaks_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with misbehaving() as engine, serving_proxy(engine.url) as root:
        with stream(root, "falls silent", "r-5"):
            pass
        assert engine.has_lost.wait(TIMEOUT_S)
        assert broken(root) == {}
    [line] = lines(caplog)
    assert (line["status"], line["outcome"]) == (499, "client_left")
    assert warnings(caplog) == []
