"""Official clients against a running gateway, each in an environment of its own (``make test-clients``)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from agentspec.engine import EngineConfig, TorchEngine
from agentspec.forest import Forest
from agentspec.gateway import ApiKeys
from agentspec.gateway.auth.api_keys import ApiKey, digest_of
from agentspec.models import BUNDLED_MODEL, bundled_model_dir
from tests.clients.support.anthropic_server import TEXT, TOOL_USE, app
from tests.gateway.support.live import post, serving_app, serving_engine, serving_proxy
from tests.gateway.support.scripted import ScriptedEngine

HERE = Path(__file__).parent
ENVIRONMENTS = HERE.parents[1] / ".venv-clients"
TIMEOUT_S = 120.0
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'


def keys() -> ApiKeys:
    """Return new keys for each client. One of them allows one request a minute."""
    return ApiKeys(
        [ApiKey(digest_of("client"), "me"), ApiKey(digest_of("limited"), "me", requests_per_minute=1)]
    )


@pytest.fixture
def root() -> Iterator[str]:
    before = torch.get_num_threads()
    config = EngineConfig(bundled_model_dir(), BUNDLED_MODEL, dtype="float64", max_model_len=256, threads=1)
    with serving_engine(TorchEngine(config, Forest()), keys=keys()) as root:
        yield root
    torch.set_num_threads(before)


@pytest.fixture
def tools_root() -> Iterator[str]:
    with serving_engine(ScriptedEngine(steps=(CALL[:20], CALL[20:60], CALL[60:]))) as root:
        yield root


@pytest.fixture
def anthropic_root() -> Iterator[str]:
    with serving_app(app) as upstream, serving_proxy(upstream, keys=keys()) as root:
        yield root


def told_by(environment: str, script: str, *arguments: str) -> dict[str, Any]:
    """Run the script with this environment's Python and return the last JSON it printed."""
    python = ENVIRONMENTS / environment / "bin" / "python"
    if not python.exists():
        pytest.skip(f"there is no {environment} client here: make test-clients")
    told = subprocess.run(
        [python, HERE / script, *arguments],
        env={"PATH": os.environ["PATH"], "NO_PROXY": "*", "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert told.returncode == 0, told.stderr
    last: dict[str, Any] = json.loads(told.stdout.splitlines()[-1])
    return last


def said(root: str) -> dict[str, str]:
    """Return the same answers, requested by plain HTTP."""
    asked = {"model": BUNDLED_MODEL, "temperature": 0}
    question = "How many users are there?"
    bodies = {
        "chat": {"messages": [{"role": "user", "content": question}], "max_tokens": 16},
        "completion": {"prompt": "SELECT", "max_tokens": 16},
        "response": {"input": question, "max_output_tokens": 16},
    }
    paths = {"chat": "/v1/chat/completions", "completion": "/v1/completions", "response": "/v1/responses"}
    answers = {
        name: post(root, {**asked, **body}, paths[name], authorization="Bearer client").json()
        for name, body in bodies.items()
    }
    return {
        "chat": answers["chat"]["choices"][0]["message"]["content"],
        "completion": answers["completion"]["choices"][0]["text"],
        "response": answers["response"]["output"][0]["content"][0]["text"],
    }


@pytest.mark.parametrize("version", [2, 3])
def test_openai(root: str, tools_root: str, version: int) -> None:
    told = told_by(f"openai-{version}", "openai_client.py", root, tools_root, BUNDLED_MODEL)
    texts = said(root)
    assert told.pop("version").startswith(f"{version}.")
    assert told.pop("errors") == {
        "no key": ["AuthenticationError", 401, "invalid_api_key", None],
        "no model": ["NotFoundError", 404, "model_not_found", None],
        "no value": ["BadRequestError", 400, "invalid_value", None],
        "too often": ["RateLimitError", 429, "rate_limit_exceeded", "60"],
    }
    assert told == {
        **texts,
        **{f"{name} stream": text for name, text in texts.items()},
        "models": [BUNDLED_MODEL],
        "model": BUNDLED_MODEL,
        "stage": "flow/a",
        "tool": ["weather", {"city": "Paris"}, "tool_calls"],
        "tool stream": ["weather", {"city": "Paris"}],
    }


def test_litellm(root: str, tools_root: str) -> None:
    told = told_by("litellm", "litellm_client.py", root, tools_root, BUNDLED_MODEL)
    texts = said(root)
    assert told.pop("errors") == {
        "no key": ["AuthenticationError", 401],
        "no model": ["NotFoundError", 404],
        "no value": ["BadRequestError", 400],
        "too often": ["RateLimitError", 429],
    }
    assert told == {
        **texts,
        "chat stream": texts["chat"],
        "tool": ["weather", {"city": "Paris"}, "tool_calls"],
    }


def test_anthropic(anthropic_root: str) -> None:
    told = told_by("anthropic", "anthropic_client.py", anthropic_root)
    text = [[TEXT["text"]], "end_turn", 4]
    tool = [[[TOOL_USE["name"], TOOL_USE["input"]]], "tool_use", 4]
    del told["version"]
    assert told.pop("errors") == {
        "no key": ["AuthenticationError", 401, None],
        "no model": ["NotFoundError", 404, None],
        "too often": ["RateLimitError", 429, "60"],
    }
    assert told == {
        "message": text,
        "message stream": text,
        "tool": tool,
        "tool stream": tool,
        "stage": "flow/a",
    }


def by_curl(*arguments: str) -> tuple[str, str]:
    """Run curl and return the response's head and body."""
    curl = shutil.which("curl")
    if curl is None:
        pytest.skip("there is no curl here")
    command = [curl, "--silent", "--show-error", "--include", "--no-buffer", "--max-time", "30", *arguments]
    told = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    head, _, body = told.stdout.partition("\n\n")
    return head, body


@pytest.mark.skipif(sys.platform == "win32", reason="curl there is another")
def test_curl(root: str) -> None:
    key = ("--header", "authorization: Bearer client")
    asked = {"temperature": 0, "max_tokens": 16}
    body = json.dumps({**asked, "messages": [{"role": "user", "content": "How many users are there?"}]})
    kind = ("--header", "content-type: application/json")
    url = f"{root}/v1/chat/completions"
    text = said(root)["chat"]

    head, answer = by_curl(*key, *kind, "--data", body, f"{root}/stages/flow/a/v1/chat/completions")
    assert head.startswith("HTTP/1.1 200 OK")
    assert "x-agentspec-stage: flow/a" in head
    assert json.loads(answer)["choices"][0]["message"]["content"] == text

    stream = json.dumps({**json.loads(body), "stream": True})
    _, answer = by_curl(*key, *kind, "--data", stream, url)
    *lines, done = [line.removeprefix("data: ") for line in answer.splitlines() if line]
    assert done == "[DONE]"
    assert "".join(json.loads(line)["choices"][0]["delta"].get("content", "") for line in lines) == text

    head, answer = by_curl(*key, "--http1.0", f"{root}/v1/models")
    assert json.loads(answer)["data"][0]["id"] == BUNDLED_MODEL
    head, _ = by_curl(*key, "--head", f"{root}/v1/models")
    assert head.startswith("HTTP/1.1 200 OK")
    head, answer = by_curl(*key, "--header", "expect: 100-continue", "--data", body, url)
    assert "HTTP/1.1 200 OK" in head + answer
    head, answer = by_curl(*kind, "--data", body, url)
    assert head.startswith("HTTP/1.1 401 ")
    assert json.loads(answer)["error"]["code"] == "invalid_api_key"
