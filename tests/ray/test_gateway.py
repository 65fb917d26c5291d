"""The gateway as a deployment: keys, tags, streams, cancelled requests and errors are as without Ray."""

from __future__ import annotations

import time
from hashlib import sha256

import httpx
import pytest

QUESTION = {"role": "user", "content": "Question: How many orders are there?"}
BODY = {"model": "agentspec-sql", "messages": [QUESTION], "temperature": 0}
CHAT = "/v1/chat/completions"
MANY_TOKENS = 1900  # some seconds
CONFIG = f"""
keys:
  - sha256: {sha256(b"acme-key").hexdigest()}
    tenant: acme
  - sha256: {sha256(b"beta-key").hexdigest()}
    tenant: beta
admin_key_sha256: {sha256(b"admin-key").hexdigest()}
"""


@pytest.fixture(scope="module")
def client(cluster, tmp_path_factory):
    from tests.ray.support.cluster import client_of

    config = tmp_path_factory.mktemp("config") / "agentspec.yaml"
    config.write_text(CONFIG)
    cluster.deploy(engines=2, config=str(config))
    with client_of(cluster) as client:
        yield client


def headers(key: str = "acme-key", **tags: str) -> dict[str, str]:
    return {
        "Authorization": f"Bearer {key}",
        **{f"X-AgentSpec-{name}": value for name, value in tags.items()},
    }


def num_output_tokens(client, stage: str) -> int:
    return stages(client).get(stage, {"num_output_tokens": 0})["num_output_tokens"]


def stages(client, key: str = "acme-key") -> dict[str, dict]:
    answer = client.get("/agentspec/stages", headers=headers(key)).raise_for_status()
    return {one["stage"]: one for one in answer.json()["stages"]}


def test_tags_reach_an_engine_and_come_back(client):
    tags = headers(Stage="agentic_sql/extract", Session="run-1", Trace="1", **{"Max-Draft": "3"})
    answer = client.post(CHAT, json=BODY, headers={**tags, "X-Request-Id": "request-1"})
    assert answer.status_code == 200
    assert answer.headers["x-agentspec-stage"] == "agentic_sql/extract"
    assert answer.headers["x-agentspec-stage-source"] == "header"
    assert answer.headers["x-request-id"] == "request-1"
    steps = answer.json()["metrics"]["speculative_decoding"]["steps"]
    assert all(len(step["tokens"]) <= 3 for step in steps)
    assert stages(client)["agentic_sql/extract"]["num_requests"] == 1


def test_the_stage_in_the_url_is_the_stage(client):
    answer = client.post("/stages/agentic_sql/enrich" + CHAT, json=BODY, headers=headers())
    assert answer.status_code == 200
    assert answer.headers["x-agentspec-stage-source"] == "url"
    assert "agentic_sql/enrich" in stages(client)


def test_a_tenant_sees_its_own_stages(client):
    assert client.post(CHAT, json=BODY, headers=headers("beta-key", Stage="own/stage")).status_code == 200
    assert "own/stage" in stages(client, "beta-key")
    assert "own/stage" not in stages(client, "acme-key")


def test_calls_of_a_stage_stay_with_one_engine(client):
    """Consistent hashing uses both engines, but one for each stage."""
    import ray.serve

    from tests.ray.support.cluster import NAME

    names = [f"kept/{number}" for number in range(12)]
    for name in names * 3:
        client.post(CHAT, json={**BODY, "max_tokens": 4}, headers=headers(Stage=name)).raise_for_status()
    by_engine = ray.serve.get_deployment_handle("engine", NAME).broadcast("stats").results()
    counted = [
        {key.name: stats.num_requests for key, stats in stages.items() if key.name in names}
        for stages in by_engine
    ]
    assert all(counted)
    assert dict.fromkeys(names, 3) == counted[0] | counted[1]
    assert not counted[0].keys() & counted[1].keys()


def test_errors_are_the_gateways(client):
    assert client.post(CHAT, json=BODY).json()["error"]["code"] == "invalid_api_key"
    wrong = client.post(CHAT, json={**BODY, "model": "no-model"}, headers=headers())
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (404, "model_not_found")
    missing = client.post(CHAT, json={**BODY, "messages": []}, headers=headers())
    assert (missing.status_code, missing.json()["error"]["param"]) == (400, "messages")
    saved = client.post("/agentspec/save", json={}, headers=headers("admin-key"))
    assert saved.status_code == 400
    assert "engine.corpus" in saved.json()["error"]["message"]


def test_other_endpoints_reach_an_engine(client):
    assert client.get("/health").status_code == 200
    assert client.get("/v1/models", headers=headers()).json()["data"][0]["id"] == "agentspec-sql"
    tokens = client.post("/tokenize", json={"prompt": "SELECT 1"}, headers=headers()).json()["tokens"]
    text = client.post("/detokenize", json={"tokens": tokens}, headers=headers()).json()["prompt"]
    assert text.endswith("SELECT 1")
    assert "agentspec_requests_total" in client.get("/metrics", headers=headers("admin-key")).text


def test_warming_and_clearing_reach_every_engine(client):
    output = {"stage": "warm/stage", "response": "SELECT count(*) FROM orders"}
    warmed = client.post("/agentspec/warm", json=output, headers=headers())
    assert warmed.json()["num_outputs"] == 2  # one on each engine
    cleared = client.delete("/agentspec/stages/warm/stage", headers=headers())
    assert cleared.json()["freed_bytes"] > 0


def test_a_stream_arrives_in_parts(client):
    body = {**BODY, "ignore_eos": True, "max_tokens": 400, "stream": True}
    arrived = []
    with client.stream("POST", CHAT, json=body, headers=headers(Stage="stream")) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        for line in answer.iter_lines():
            if line:
                arrived.append(time.monotonic())
    assert len(arrived) > 20
    assert arrived[len(arrived) // 2] < arrived[-1]


@pytest.mark.parametrize("is_streamed", [True, False])
def test_a_client_that_leaves_cancels_its_request(client, is_streamed):
    name = f"left/{is_streamed}"
    body = {**BODY, "ignore_eos": True, "max_tokens": MANY_TOKENS, "stream": is_streamed}
    tags = headers(Stage=name, **{"Max-Draft": "0"})
    if is_streamed:
        with client.stream("POST", CHAT, json=body, headers=tags) as answer:
            next(answer.iter_lines())
    else:
        with pytest.raises(httpx.ReadTimeout):
            client.post(CHAT, json=body, headers=tags, timeout=1)
    deadline_s = time.monotonic() + 120
    before = -1
    while (now := num_output_tokens(client, name)) != before or now == 0:
        assert time.monotonic() < deadline_s
        before = now
        time.sleep(3)
    assert now < MANY_TOKENS
