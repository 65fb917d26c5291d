"""Engines that lose their cache, and engines that generate nothing."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from agentspec.vllm_plugin.launch import asks_for_v2
from benchmarks.vllm.chats import MODEL_NAME, Chat
from benchmarks.vllm.server import Server
from benchmarks.vllm.speculators import NONE
from tests.real_vllm.support.probes import CHATS, NUM_CLIENTS, TIMEOUT_S, unchanged
from tests.real_vllm.support.servers import ours, serving

TEXTS = ("How many orders are there?", "List the tables.")
FAILING_LOADS = {
    "kv_connector_module_path": "tests.real_vllm.support.failing_loads",
    "kv_role": "kv_both",
}
COMPUTED_AGAIN = {
    **FAILING_LOADS,
    "kv_connector": "FailingConnector",
    "kv_load_failure_policy": "recompute",
}
ENDED = {**FAILING_LOADS, "kv_connector": "SometimesFailingConnector", "kv_load_failure_policy": "fail"}


@pytest.mark.slow
@pytest.mark.skipif(
    bool(asks_for_v2(os.environ)), reason="vLLM 0.32's model runner V2 continues without the lost blocks"
)
def test_a_failed_load_of_the_cache_costs_drafts_alone(
    references: dict[str, list[Any]], tmp_path: Path
) -> None:
    with serving(ours(), tmp_path, "--kv-transfer-config", json.dumps(COMPUTED_AGAIN)) as server:
        for _ in range(3):  # from the second on, most prompts are cached
            assert unchanged(server) == references["plain"]
        accepted = sum(one["num_accepted_tokens"] for one in server.control("stages")["stages"])
        assert accepted > 300
    assert "Recovered from KV load failure" in (tmp_path / "vllm-agentspec.log").read_text()


@pytest.mark.slow
def test_a_request_that_ends_with_a_failed_load_changes_no_other(
    references: dict[str, list[Any]], tmp_path: Path
) -> None:
    with serving(ours(), tmp_path, "--kv-transfer-config", json.dumps(ENDED)) as server:
        with ThreadPoolExecutor(NUM_CLIENTS) as clients:
            found = list(clients.map(partial(outcome, server), CHATS))
        accepted = sum(one["num_accepted_tokens"] for one in server.control("stages")["stages"])
        assert server.control("status")["num_requests"] == 0
    expected = [text for _, text, _ in references["plain"]]
    assert [text or other for text, other in zip(found, expected, strict=True)] == expected
    assert 0 < found.count(None) < len(found)
    assert accepted > 50


@pytest.mark.slow
def test_a_pooling_model_gives_the_embeddings_that_it_gives_without_drafts(tmp_path: Path) -> None:
    found = []
    for speculator in (NONE, ours()):
        with serving(speculator, tmp_path, "--runner", "pooling", "--convert", "embed") as server:
            found += [[embedding(server, text) for text in TEXTS] for _ in range(2)]
            if speculator is not NONE:
                assert server.control("status")["num_requests"] == 0
    assert found[0] == found[1] == found[2] == found[3]
    assert found[0][0] != found[0][1]


def embedding(server: Server, text: str) -> list[float]:
    body = {"model": MODEL_NAME, "input": text}
    answer = httpx.post(f"{server.url}/v1/embeddings", json=body, timeout=TIMEOUT_S).raise_for_status()
    return list(answer.json()["data"][0]["embedding"])


def outcome(server: Server, chat: Chat) -> str | None:
    """Return the text of a response; None if vLLM ended it with an error."""
    answer = httpx.post(f"{server.url}/v1/chat/completions", json=dict(chat.body), timeout=TIMEOUT_S)
    if answer.status_code == httpx.codes.INTERNAL_SERVER_ERROR:
        return None
    return str(answer.raise_for_status().json()["choices"][0]["message"]["content"])
