from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from agentspec.gateway.auth.api_keys import API_KEYS_VARIABLE
from agentspec.vllm_plugin.launch import ZERO_HOP
from benchmarks.vllm.chats import MODEL_NAME
from benchmarks.vllm.speculators import OURS, bundled_on_cpu

TIMEOUT_S = 60.0
FORGED = {"agentspec_tenant": "bolt", "agentspec_stage": "theirs", "agentspec_max_draft": 0}
HI = [{"role": "user", "content": "hi"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HI, "max_tokens": 5},
    "/v1/chat/completions/batch": {"messages": [HI, HI], "max_tokens": 5},
    "/v1/completions": {"prompt": "SELECT", "max_tokens": 5},
    "/v1/responses": {"input": "hi", "max_output_tokens": 5},
    "/v1/messages": {"messages": HI, "max_tokens": 5},
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Yield one server with two tenants for all tests. Each test uses its own stages."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(API_KEYS_VARIABLE, "ka=acme,kb=bolt")
        folder = tmp_path_factory.mktemp("server")
        with bundled_on_cpu().serving(OURS, folder, "--middleware", ZERO_HOP) as server:
            yield server


def post(server: Any, path: str, *, key: str = "ka", stage: str, **fields: Any) -> httpx.Response:
    body = {"model": MODEL_NAME, "temperature": 0, "ignore_eos": True, **BODIES[path], **fields}
    headers = {"authorization": f"Bearer {key}"}
    return httpx.post(f"{server.url}/stages/{stage}{path}", json=body, headers=headers, timeout=TIMEOUT_S)


def figures(server: Any) -> dict[tuple[str, str], dict[str, Any]]:
    return {(one["tenant"], one["stage"]): one for one in server.control("stages")["stages"]}


@pytest.mark.parametrize("path", BODIES)
def test_every_way_to_generate_is_tagged(server: Any, path: str) -> None:
    stage = f"every/{path.replace('/', '-')}"
    answer = post(server, path, stage=stage, vllm_xargs=FORGED)
    assert answer.status_code == 200
    assert answer.headers["x-agentspec-stage"] == stage
    assert answer.headers["x-agentspec-stage-source"] == "url"
    counted = figures(server)
    assert counted["acme", stage]["num_output_tokens"] == (10 if path.endswith("batch") else 5)
    assert not [key for key in counted if key[0] == "bolt" or key[1] == "theirs"]


def test_what_only_the_runner_v2_has_no_room_for_is_passed_on_to_v1(server: Any) -> None:
    fields = {"stop_token_ids": [*range(200)], "min_tokens": 2, "allowed_token_ids": [*range(1025)]}
    assert post(server, "/v1/completions", stage="no/limits", **fields).status_code == 200


def test_a_stream_ends_with_its_own_figures(server: Any) -> None:
    answer = post(
        server,
        "/v1/chat/completions",
        stage="stream",
        max_tokens=40,
        stream=True,
        stream_options={"include_usage": True},
    )
    assert answer.text.endswith("data: [DONE]\n\n")
    assert '"speculative_decoding":{' in answer.text.splitlines()[-4]
    assert figures(server)["acme", "stream"]["num_output_tokens"] == 40


def test_a_prediction_is_drafted_from_in_its_own_request(server: Any) -> None:
    path = "/v1/completions"
    fields = {"max_tokens": 60, "prompt": "SELECT COUNT"}
    expected = post(server, path, stage="unlearned", key="kb", **fields).json()["choices"][0]["text"]
    for stage, prediction in (("without", None), ("with", {"type": "content", "content": expected})):
        answer = post(server, path, stage=stage, prediction=prediction, **fields).json()
        assert answer["choices"][0]["text"] == expected
    counted = figures(server)
    without, given = (counted["acme", stage]["num_steps"] for stage in ("without", "with"))
    assert given < without


def test_a_client_that_leaves_ends_its_request(server: Any) -> None:
    body = {"model": MODEL_NAME, "prompt": "SELECT", "max_tokens": 1900, "ignore_eos": True, "stream": True}
    headers = {"authorization": "Bearer ka", "x-agentspec-stage": "left", "x-agentspec-max-draft": "0"}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, headers=headers) as answer:
        assert next(answer.iter_raw())
    deadline = time.monotonic() + TIMEOUT_S
    while server.control("status")["num_requests"] and time.monotonic() < deadline:
        time.sleep(0.05)
    assert figures(server)["acme", "left"]["num_output_tokens"] < 1900


def test_keys(server: Any) -> None:
    assert post(server, "/v1/messages", stage="a", key="nobody").status_code == 401
    assert httpx.get(f"{server.url}/v1/models").status_code == 401
    assert httpx.get(f"{server.url}/v1/models", headers={"authorization": "Bearer kb"}).status_code == 200
    assert httpx.get(f"{server.url}/metrics").status_code == 200
    raw = {"token_ids": [1], "sampling_params": {"max_tokens": 1, "extra_args": FORGED}}
    answer = httpx.post(
        f"{server.url}/inference/v1/generate", json=raw, headers={"authorization": "Bearer ka"}
    )
    assert answer.status_code == 403
