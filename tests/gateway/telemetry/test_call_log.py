"""One log line per call, and data that must never be logged."""

from __future__ import annotations

import json
import logging

import httpx
import pytest

from agentspec.commands.logs import JsonLines, TextLines
from agentspec.errors import EngineError
from agentspec.gateway import ApiKeys
from tests.gateway.support.live import chat_body, post, serving_engine, serving_proxy
from tests.gateway.support.scripted import ScriptedEngine
from tests.gateway.support.telemetry import lines

KEY, PROMPT = "sk-k3y-of-acme", "pr0mpt-of-acme"
AUTHORIZATION = {"authorization": f"Bearer {KEY}"}
CLIENTS = ("httpx", "httpcore", "openai", "urllib3")  # loggers of the test's own clients
PATHS = ("chat/completions", "completions", "responses", "messages")


@pytest.fixture(autouse=True)
def level(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)


def test_a_line_says_who_asked_for_what_and_who_answered(caplog: pytest.LogCaptureFixture) -> None:
    keys = ApiKeys.parse([f"{KEY}=acme"])
    with (
        serving_engine(ScriptedEngine()) as engine,
        serving_proxy(engine, settings={"name": "a"}, keys=keys) as root,
    ):
        caplog.clear()
        post(root, chat_body(), x_agentspec_stage="flow/plan", x_request_id="r-1", **AUTHORIZATION)
    [line] = [line for line in lines(caplog) if "upstream" in line]
    assert line.pop("ms") >= 0
    assert line == {
        "request_id": "r-1",
        "method": "POST",
        "endpoint": "/v1/chat/completions",
        "status": 200,
        "tenant": "acme",
        "stage": "flow/plan",
        "stage_source": "header",
        "model": "scripted",
        "upstream": "a",
    }


@pytest.mark.parametrize("form", [JsonLines(), TextLines("%(message)s")], ids=["json", "text"])
def test_a_client_writes_no_lines_of_its_own(
    caplog: pytest.LogCaptureFixture, form: logging.Formatter
) -> None:
    model = "m\nINFO forged\x9b" + "x" * 1000
    with serving_engine(ScriptedEngine()) as root:
        post(root, chat_body(model=model))
    [record] = [record for record in caplog.records if record.getMessage() == "call"]
    text = form.format(record)
    assert len(text.splitlines()) == 1
    assert len(text) < 500
    if isinstance(form, JsonLines):
        assert json.loads(text)["model"] == model[:128]
    else:
        assert "status=404" in text
        assert text.isascii()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("failure", [None, EngineError("broken")], ids=["well", "failing"])
def test_no_text_no_key_and_no_header_at_any_level(
    caplog: pytest.LogCaptureFixture, stream: bool, failure: EngineError | None
) -> None:
    engine = ScriptedEngine(failure=failure)
    keys = ApiKeys.parse([f"{KEY}=acme"])
    with serving_engine(engine) as url, serving_proxy(url, keys=keys) as root:
        for path in PATHS:
            body = chat_body(stream=stream, prompt=PROMPT, input=PROMPT, max_tokens=9)
            body["messages"][0]["content"] = PROMPT
            post(root, body, f"/v1/{path}", **AUTHORIZATION, cookie=KEY, baggage=f"a={KEY}")
        post(root, b'{"messages": "' + PROMPT.encode(), **AUTHORIZATION)
        post(root, chat_body(), authorization="Bearer wrong-k3y")
        post(root, {"prompt": PROMPT}, "/tokenize", **AUTHORIZATION)
        httpx.get(f"{root}/v1/models?key={KEY}", headers={"x-api-key": KEY})
    records = [record for record in caplog.records if record.name.partition(".")[0] not in CLIENTS]
    logged = "\n".join(f"{JsonLines().format(record)} {record.args}" for record in records)
    assert len(lines(caplog)) > len(PATHS)
    for secret in ("k3y", "pr0mpt", "Bearer", "Hello", "wörld"):
        assert secret not in logged
