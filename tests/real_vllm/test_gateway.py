"""The gateway in front of real vLLM: statistics and traces that it reads, and commands that it sends."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from agentspec.gateway import ApiKeys
from agentspec.gateway.upstreams.usage import StageUsage, UsageTail
from agentspec.stages import StageKey
from agentspec.stats import StageStats
from benchmarks.vllm.chats import MODEL_NAME
from benchmarks.vllm.speculators import Speculator, bundled_on_cpu
from examples.agentic_sql import prompts
from tests.gateway.support.live import post, serving_proxy

OURS = Speculator("agentspec", settings={"price": 0.02})  # drafts must not depend on the machine's load
KEY = {"authorization": "Bearer ka"}
END = "<|end|>"  # end token of the bundled model
BODY = {
    "model": MODEL_NAME,
    "messages": [{"role": "user", "content": "How many users are there? users(id, name)"}],
    "temperature": 0,
    "max_tokens": 40,
    "ignore_eos": True,
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with bundled_on_cpu().serving(OURS, tmp_path_factory.mktemp("server")) as server:
        yield server


@pytest.fixture
def root(server: Any) -> Iterator[str]:
    with serving_proxy(server.url, keys=ApiKeys.parse(["ka=acme"]), admin_key="boss") as root:
        yield root


def ask(root: str, stage: str, **fields: Any) -> httpx.Response:
    answer = post(root, {**BODY, **fields}, x_agentspec_stage=stage, **KEY)
    assert answer.status_code == 200
    return answer


def told(root: str, stage: str) -> dict[str, Any]:
    stages = httpx.get(f"{root}/agentspec/stages", headers=KEY).json()["stages"]
    (found,) = (one for one in stages if one["stage"] == stage)
    return dict(found)


def test_the_workers_counters_reach_operators_and_tenants(root: str) -> None:
    ask(root, "counted/a")
    ask(root, "counted/a", n=2, temperature=1, seed=1)  # vLLM's response has no figures for it
    found = told(root, "counted/a")
    assert (found["tenant"], found["num_output_tokens"]) == ("acme", 3 * 40)
    assert found["num_output_tokens"] == 3 + found["num_steps"] + found["num_accepted_tokens"]
    assert sum(found["accepted_by_source"].values()) == found["num_accepted_tokens"] > 0
    assert found["tree_bytes"] > 0
    text = httpx.get(f"{root}/metrics", headers={"authorization": "Bearer boss"}).text
    line = 'agentspec_accepted_tokens_total{stage="counted/a",tenant="acme"}'
    assert f"{line} {float(found['num_accepted_tokens'])}" in text.splitlines()


def test_what_only_the_runner_v2_has_no_room_for_is_passed_on_to_v1(root: str) -> None:
    for fields in ({"allowed_token_ids": [*range(1025)]}, {"stop_token_ids": [*range(200)], "min_tokens": 2}):
        ask(root, "no/limits", max_tokens=3, **fields)


@pytest.mark.parametrize("is_stream", [False, True])
def test_an_answer_tells_of_itself(root: str, is_stream: bool) -> None:
    """Count from the responses, as the gateway does without the plugin's counters."""
    stage = StageKey("acme", ("told", str(is_stream)))
    options = {"stream": True, "stream_options": {"include_usage": True}} if is_stream else {}
    counted = StageUsage()
    for _ in range(2):
        answer = ask(root, stage.name, **options)
        tail = UsageTail(is_event_stream=is_stream)
        for start in range(0, len(answer.content), 100):
            tail.add(answer.content[start : start + 100])
        counted.count_answer(stage, tail.payload())
    assert _main(counted.stats[stage]) == _main(StageStats(**_counters(told(root, stage.name))))
    assert counted.stats[stage].num_accepted_tokens > 0


def _main(stats: StageStats) -> tuple[int, ...]:
    return (
        stats.num_prompt_tokens,
        stats.num_output_tokens,
        stats.num_steps,
        stats.num_draft_tokens,
        stats.num_accepted_tokens,
    )


def _counters(figures: dict[str, Any]) -> dict[str, int]:
    return {key: value for key, value in figures.items() if key.startswith("num_")}


def test_a_stage_that_was_warmed_drafts_its_first_request(root: str) -> None:
    text = ask(root, "source").json()["choices"][0]["message"]["content"]
    line = json.dumps({"stage": "warm/a", "response": text})
    warmed = httpx.post(f"{root}/agentspec/warm", content=line, headers=KEY, timeout=60)
    assert warmed.json()["num_outputs"] == 1
    assert warmed.json()["num_tokens"] > 20
    ask(root, "warm/a")
    assert told(root, "warm/a")["accepted_by_source"]["stage"] > 0


def test_a_stage_that_was_evicted_has_no_tree(root: str, server: Any) -> None:
    ask(root, "gone/a")
    assert told(root, "gone/a")["tree_bytes"] > 0
    freed = httpx.delete(f"{root}/agentspec/stages/gone/a", headers=KEY).json()["freed_bytes"]
    assert freed > 0
    assert server.control("evict", tenant="acme", stage="gone/a") == {"freed_bytes": 0}


def steps_of(root: str, answer: httpx.Response) -> list[dict[str, Any]]:
    request_id = answer.headers["x-request-id"]
    found = httpx.get(f"{root}/agentspec/traces/{request_id}", headers=KEY, timeout=60)
    assert found.status_code == 200, found.text
    return list(found.json()["steps"])


def output_of(steps: list[dict[str, Any]]) -> str:
    return "".join(
        "".join(step["tokens"][index] for index in step["accepted"]) + (step["own"] or "") for step in steps
    )


def traced(root: str, stage: str, **fields: Any) -> tuple[httpx.Response, str]:
    """Return the response to a traced call that repeats an untraced one, and its text, which is the same."""
    untraced = ask(root, stage, **fields)
    answer = post(root, {**BODY, **fields}, x_agentspec_stage=stage, x_agentspec_trace="1", **KEY)
    before, text = (one.json()["choices"][0]["message"]["content"] for one in (untraced, answer))
    assert text == before
    request_id = untraced.headers["x-request-id"]
    assert httpx.get(f"{root}/agentspec/traces/{request_id}", headers=KEY).status_code == 404
    return answer, text


@pytest.mark.parametrize(
    "fields", [{}, {"messages": prompts.classify("How many users are there?"), "ignore_eos": False}]
)
def test_a_traced_call_is_answered_the_same_and_told_step_by_step(root: str, fields: dict[str, Any]) -> None:
    """One response is cut off. The other ends with the end token, which is learned and drafted as well."""
    answer, text = traced(root, f"traced/{len(fields)}", **fields)
    steps = steps_of(root, answer)
    assert output_of(steps).removesuffix(END) == text
    figures = answer.json()["metrics"]["speculative_decoding"]
    assert sum(len(step["accepted"]) for step in steps) == figures["num_accepted_draft_tokens"] > 10
    assert sum(len(step["tokens"]) for step in steps) == figures["num_draft_tokens"]
    assert all(step["source"] for step in steps if step["accepted"])


def test_what_the_last_step_wrote_behind_a_stop_string_is_told_too(root: str) -> None:
    answer, text = traced(root, "traced/stopped", stop=["The"])
    assert output_of(steps_of(root, answer)).startswith(text)
