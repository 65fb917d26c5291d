"""Several engines behind one gateway: selection of an engine, and failover."""

from __future__ import annotations

import json
import socket
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx
import pytest

from agentspec.gateway import Fleet, FleetSettings, UpstreamSettings
from agentspec.generation import ModelCard
from tests.gateway.support.answering import IMPATIENT, answering
from tests.gateway.support.leaving import eventually
from tests.gateway.support.live import (
    TIMEOUT_S,
    chat_body,
    client_of,
    post,
    serving,
    serving_engine,
    serving_proxy,
)
from tests.gateway.support.scripted import ScriptedEngine
from tests.gateway.support.telemetry import num_waiting, scrape


@contextmanager
def fleet(*engines: ScriptedEngine, **options: Any) -> Iterator[str]:
    """Yield the root URL of a gateway in front of the engines."""
    with ExitStack() as stack:
        urls = [stack.enter_context(serving_engine(engine)) for engine in engines]
        yield stack.enter_context(serving_proxy(*urls, **options))


def test_a_stage_stays_with_one_engine() -> None:
    engines = [ScriptedEngine() for _ in range(3)]
    with fleet(*engines) as root:
        for stage in [f"s{number}" for number in range(24)] * 2:  # enough for each engine to get some
            assert post(root, chat_body(), x_agentspec_stage=stage).status_code == 200
    homes = Counter(stage for engine in engines for stage in {one.tags.stage for one in engine.requests})
    assert set(homes.values()) == {1}
    assert all(engine.requests for engine in engines)


def test_a_session_stays_with_one_engine() -> None:
    engines = [ScriptedEngine() for _ in range(3)]
    with fleet(*engines, fleet={"routing": {"policy": "session"}}) as root:
        for stage in ("a", "b", "c", "d"):
            for session in ("s1", "s2", "s3", "s4", "s5", "s6"):
                post(root, chat_body(), x_agentspec_stage=stage, x_agentspec_session=session)
    homes = Counter(
        session for engine in engines for session in {one.tags.session for one in engine.requests}
    )
    assert set(homes.values()) == {1}


def test_a_busy_stage_spills_over() -> None:
    engines = [ScriptedEngine(is_endless=True) for _ in range(2)]
    with fleet(*engines) as root, ExitStack() as stack, client_of(root) as client:
        for num_open in range(1, 9):
            stream = stack.enter_context(client.chat.completions.create(**chat_body(stream=True)))
            next(iter(stream))
            assert sum(len(engine.requests) for engine in engines) == num_open
    assert sorted(len(engine.requests) for engine in engines) in ([3, 5], [4, 4])


def test_a_model_goes_where_it_is_served() -> None:
    small, large = (
        ScriptedEngine(model=ModelCard("small", 4096)),
        ScriptedEngine(model=ModelCard("large", 4096)),
    )
    with fleet(small, large, fleet={"health": {"interval_s": 0.01}}) as root, client_of(root) as client:
        assert [model.id for model in client.models.list().data] == ["small", "large"]
        for _ in range(3):
            for name in ("small", "large"):
                assert client.chat.completions.create(**chat_body(model=name)).model == name
        assert client.models.retrieve("large").id == "large"
    assert (len(small.requests), len(large.requests)) == (3, 3)


def test_a_model_that_no_engine_is_for() -> None:
    with fleet(ScriptedEngine(), settings={"models": ["scripted"]}) as root:
        answer = post(root, chat_body(model="gpt-9"))
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")
        assert post(root, chat_body()).status_code == 200


def test_another_engine_answers_for_one_that_is_down(free_port: int) -> None:
    engine = ScriptedEngine()
    with (
        serving_engine(engine) as up,
        serving_proxy(f"http://127.0.0.1:{free_port}", up, fleet=IMPATIENT) as root,
    ):
        for number in range(8):
            assert post(root, chat_body(), x_agentspec_stage=f"s{number}").status_code == 200
        assert httpx.get(f"{root}/health").status_code == 200
    assert len(engine.requests) == 8


@pytest.mark.parametrize("status", [502, 503, 504])
def test_another_engine_answers_for_one_that_can_not(status: int) -> None:
    engine = ScriptedEngine()
    with (
        answering(status) as (unable, seen),
        serving_engine(engine) as able,
        serving_proxy(unable, able, fleet=IMPATIENT) as root,
    ):
        for number in range(8):
            assert post(root, chat_body(), x_agentspec_stage=f"s{number}").status_code == 200
    assert len(engine.requests) == 8
    assert seen  # it received a request


@pytest.mark.parametrize("status", [400, 404, 429, 500, 501])
def test_what_the_engine_means_is_not_tried_again(status: int) -> None:
    with answering(status) as (url, seen), serving_proxy(url, fleet=IMPATIENT) as root:
        assert post(root, chat_body()).status_code == status
    assert len(seen) == 1


def test_what_does_not_generate_is_not_tried_again() -> None:
    with answering(503) as (url, seen), serving_proxy(url, fleet=IMPATIENT) as root:
        assert post(root, {}, "/v1/load_lora_adapter").status_code == 503
        assert post(root, chat_body()).status_code == 503
    assert [one.path for one in seen] == ["/v1/load_lora_adapter", *["/v1/chat/completions"] * 3]


def test_an_engine_that_refuses_connections_is_left_to_the_probes(free_port: int) -> None:
    health = {"num_failed_looks": 2, "interval_s": 600}
    dead = UpstreamSettings(url=f"http://127.0.0.1:{free_port}", name="dead", weight=1000)
    with serving_engine(ScriptedEngine()) as url:
        upstreams = (dead, UpstreamSettings(url=url, name="well"))
        with serving(Fleet(FleetSettings(upstreams=upstreams, health=health, **IMPATIENT))) as root:
            assert {post(root, chat_body()).status_code for _ in range(8)} == {200}
            samples = scrape(root)
    upstream = (("upstream", "dead"),)
    assert samples["agentspec_upstream_up", upstream] == 0
    assert 1 <= samples["agentspec_upstream_failures_total", upstream] <= 2


def test_requests_that_an_engine_fails_do_not_take_it_from_others() -> None:
    with answering(500) as (url, seen), serving_proxy(url) as root:
        assert [post(root, chat_body()).status_code for _ in range(9)] == [500] * 9
        assert scrape(root)["agentspec_upstream_up", (("upstream", "engine-0"),)] == 1
    assert len(seen) == 9


def test_who_finds_no_room_waits_in_line() -> None:
    engine = ScriptedEngine(is_endless=True)
    with (
        fleet(engine, settings={"max_concurrent": 1}) as root,
        client_of(root) as client,
        ThreadPoolExecutor(4) as pool,
    ):
        stream = client.chat.completions.create(**chat_body(stream=True))
        next(iter(stream))
        waiting = [pool.submit(post, root, chat_body()) for _ in range(4)]
        engine.is_endless = False
        stream.close()
        assert [one.result(TIMEOUT_S).status_code for one in waiting] == [200] * 4
    assert len(engine.requests) == 5


def test_no_more_wait_than_may() -> None:
    engine = ScriptedEngine(is_endless=True)
    with (
        fleet(engine, settings={"max_concurrent": 1}, fleet={"routing": {"max_waiting": 0}}) as root,
        client_of(root) as client,
        client.chat.completions.create(**chat_body(stream=True)) as stream,
    ):
        next(iter(stream))
        refused = post(root, chat_body())
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "queue_full")
    assert refused.headers["retry-after"] == "1"
    assert len(engine.requests) == 1


def test_who_waits_too_long_is_told_so() -> None:
    engine = ScriptedEngine(is_endless=True)
    timeouts = {"timeouts": {"queue_s": 0.05}}
    with (
        fleet(engine, settings={"max_concurrent": 1}, fleet=timeouts) as root,
        client_of(root) as client,
        client.chat.completions.create(**chat_body(stream=True)) as stream,
    ):
        next(iter(stream))
        answer = post(root, chat_body())
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "queue_timeout")
    assert len(engine.requests) == 1


def test_whoever_leaves_the_line_takes_no_place() -> None:
    engine = ScriptedEngine(is_endless=True)
    with (
        fleet(engine, settings={"max_concurrent": 1}) as root,
        client_of(root) as client,
    ):
        stream = client.chat.completions.create(**chat_body(stream=True))
        next(iter(stream))
        where = httpx.URL(root)
        with socket.create_connection((where.host, where.port or 0), timeout=TIMEOUT_S) as connection:
            body = json.dumps(chat_body()).encode()
            head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
            connection.sendall(head.encode() + body)
            assert eventually(lambda: num_waiting(root) == 1)
        assert eventually(lambda: num_waiting(root) == 0)
        engine.is_endless = False
        stream.close()
        assert post(root, chat_body()).status_code == 200
    assert len(engine.requests) == 2


def test_what_all_engines_learned_is_one_table() -> None:
    engines = [ScriptedEngine() for _ in range(2)]
    with fleet(*engines) as root:
        for number in range(6):
            post(root, chat_body(), x_agentspec_stage=f"s{number}")
        stages = httpx.get(f"{root}/agentspec/stages").json()["stages"]
    assert sorted(stage["stage"] for stage in stages) == [f"s{number}" for number in range(6)]
    assert {stage["num_requests"] for stage in stages} == {1}
