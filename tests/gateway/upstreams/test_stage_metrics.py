from __future__ import annotations

import httpx
import pytest

from agentspec.gateway import GatewaySettings
from agentspec.stages import StageKey
from agentspec.stats import StageStats
from tests.gateway.support.live import chat_body, post, serving_engine
from tests.gateway.support.scripted import NUM_PROMPT_TOKENS, STEPS, ScriptedEngine
from tests.gateway.support.telemetry import of_stage, scrape


def test_counters_per_stage() -> None:
    with serving_engine(ScriptedEngine()) as root:
        for stage in ("flow/a", "flow/a", "flow/b"):
            post(root, chat_body(), x_agentspec_stage=stage)
        samples = scrape(root)
    assert of_stage(samples, "agentspec_requests_total", "flow/a") == 2
    assert of_stage(samples, "agentspec_requests_total", "flow/b") == 1
    assert of_stage(samples, "agentspec_prompt_tokens_total", "flow/a") == 2 * NUM_PROMPT_TOKENS
    assert of_stage(samples, "agentspec_output_tokens_total", "flow/b") == 2 * len(STEPS)
    assert of_stage(samples, "agentspec_decode_steps_total", "flow/b") == 4
    assert of_stage(samples, "agentspec_draft_tokens_total", "flow/b") == 8
    assert of_stage(samples, "agentspec_accepted_tokens_total", "flow/b") == 6
    assert of_stage(samples, "agentspec_accepted_tokens_by_source_total", "flow/b", source="stage") == 4
    assert of_stage(samples, "agentspec_accepted_tokens_by_source_total", "flow/b", source="session") == 0
    assert of_stage(samples, "agentspec_tree_bytes", "flow/b") == 4096


def test_accepted_tokens_by_origin() -> None:
    engine = ScriptedEngine()
    engine.counters[StageKey("default", ("a",))] = StageStats(
        num_accepted_tokens=9, num_accepted_from_fleet=4, num_accepted_from_snapshot=2
    )
    with serving_engine(engine) as root:
        samples = scrape(root)
    assert of_stage(samples, "agentspec_accepted_tokens_from_fleet_total", "a") == 4
    assert of_stage(samples, "agentspec_accepted_tokens_from_snapshot_total", "a") == 2


def test_requests_by_endpoint_and_status() -> None:
    with serving_engine(ScriptedEngine()) as root:
        post(root, chat_body())
        post(root, chat_body(stream=True), "/stages/a/v1/chat/completions")
        post(root, b"{")
        httpx.get(f"{root}/nowhere/7")
        samples = scrape(root)
    name = "agentspec_gateway_requests_total"
    assert samples[name, (("endpoint", "/v1/chat/completions"), ("status", "200"))] == 2
    assert samples[name, (("endpoint", "/v1/chat/completions"), ("status", "400"))] == 1
    assert samples[name, (("endpoint", "other"), ("status", "404"))] == 1
    count = "agentspec_gateway_request_seconds_count"
    assert samples[count, (("endpoint", "/v1/chat/completions"), ("status", "200"))] == 2


def test_so_many_stages_have_a_name_the_rest_is_other() -> None:
    engine = ScriptedEngine()
    for index in range(1, 8):
        stage = StageKey("default", (f"s{index}",))
        engine.counters[stage] = StageStats(num_requests=index, tree_bytes=10)
    engine.counters[StageKey("acme", ("s1",))] = StageStats(num_requests=1)
    with serving_engine(engine, settings=GatewaySettings(num_stage_labels=3)) as root:
        samples = scrape(root)
        engine.counters[StageKey("default", ("s7",))].num_requests = 100
        later = scrape(root)
    requests = {key[1]: value for key, value in samples.items() if key[0] == "agentspec_requests_total"}
    assert requests == {
        (("stage", "s1"), ("tenant", "default")): 1,
        (("stage", "s2"), ("tenant", "default")): 2,
        (("stage", "s3"), ("tenant", "default")): 3,
        (("stage", "other"), ("tenant", "default")): 4 + 5 + 6 + 7,
        (("stage", "s1"), ("tenant", "acme")): 1,
    }
    assert of_stage(samples, "agentspec_tree_bytes", "other") == 40
    assert of_stage(later, "agentspec_requests_total", "other") == 4 + 5 + 6 + 100  # counters never decrease


class BrokenEngine(ScriptedEngine):
    """An engine that fails in an unexpected place."""

    def stats(self) -> dict[StageKey, StageStats]:
        if not self.is_healthy:
            raise ZeroDivisionError
        return super().stats()


def test_a_bug_is_counted_as_ours_and_not_as_a_client_that_left(caplog: pytest.LogCaptureFixture) -> None:
    engine = BrokenEngine(is_healthy=False)
    with serving_engine(engine) as root:
        assert httpx.get(f"{root}/metrics").json()["error"]["code"] == "internal_error"
        engine.is_healthy = True
        samples = scrape(root)
    assert samples["agentspec_gateway_requests_total", (("endpoint", "/metrics"), ("status", "500"))] == 1
    assert "ZeroDivisionError" in caplog.text
