"""Processes that are killed while requests run. Requests without an answer yet must not notice."""

from __future__ import annotations

import json
import threading
import time

import pytest

QUESTION = {"role": "user", "content": "Question: How many orders are there?"}
SAMPLING = {"temperature": 0, "ignore_eos": True, "max_tokens": 1200}
LONG = {"model": "agentspec-sql", "messages": [QUESTION], **SAMPLING}
AT_THE_ENGINE_S = 0.2  # a request is there by now; else it finds a dead one, which must work too
CHAT = "/v1/chat/completions"
STAGE = {"X-AgentSpec-Stage": "agentic_sql/classify"}


@pytest.fixture(scope="module")
def given():
    from tests.ray.support.calls import calls

    return calls(36)


@pytest.fixture(scope="module")
def expected(given):
    from tests.ray.support.calls import local_answers

    return local_answers(given)


def answers_with(cluster, given, kill):
    """Return what clients receive if ``kill`` is called after some answers."""
    from tests.ray.support.calls import Clients

    clients = Clients(cluster.url, given, 300)
    with clients.running(8):
        clients.wait_answered(6)
        kill()
    return clients.answers


def check(answers, expected):
    assert answers.num_errors == 0, answers.problems
    assert len(answers.texts) + answers.num_broken == len(expected)
    assert all(text == expected[number] for number, text in answers.texts.items())


def test_a_request_outlives_its_replica_and_a_stream_that_began_ends_with_an_error(cluster):
    """With one engine both are on it, and both are under way once the stream has begun."""
    from tests.ray.support.cluster import ENGINE, client_of, num_retries

    cluster.deploy(engines=1)
    whole = []
    with client_of(cluster) as client:
        expected = client.post(CHAT, json=LONG, headers=STAGE).json()["choices"][0]["message"]["content"]
        asking = threading.Thread(target=lambda: whole.append(client.post(CHAT, json=LONG, headers=STAGE)))
        with client.stream("POST", CHAT, json={**LONG, "stream": True}, headers=STAGE) as streamed:
            events = (line.removeprefix("data: ") for line in streamed.iter_lines() if line)
            first = json.loads(next(events))
            asking.start()
            for _ in range(3):
                json.loads(next(events))
            time.sleep(AT_THE_ENGINE_S)
            cluster.kill(ENGINE)
            rest = [json.loads(event) for event in events]
        asking.join()
    assert first["choices"]
    assert rest[-1]["error"]["code"] == "upstream_unavailable"
    assert whole[0].status_code == 200
    assert whole[0].json()["choices"][0]["message"]["content"] == expected
    assert num_retries(cluster) >= 1


def test_killed_processes_cause_no_error(cluster, given, expected):
    """An engine, Serve's controller, the head's control store, then all processes of a node."""
    from tests.ray.support.calls import EXACT
    from tests.ray.support.cluster import CONTROLLER, ENGINE

    cluster.deploy(engines=3, dtype=EXACT)
    check(answers_with(cluster, given, lambda: cluster.kill(ENGINE)), expected)
    cluster.wait_until(lambda: len(cluster.processes(ENGINE)) == 3)
    check(answers_with(cluster, given, lambda: cluster.kill(CONTROLLER)), expected)
    check(answers_with(cluster, given, cluster.restart_head), expected)
    node = next(iter(cluster.cluster.worker_nodes))
    try:
        check(answers_with(cluster, given, lambda: cluster.kill_node(node)), expected)
    finally:
        cluster.add_node(2)
