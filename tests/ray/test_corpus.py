"""The corpus of engine replicas: read in before they serve, published before they stop."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import numpy as np
import pytest

from agentspec.stages import StageKey

CHAT = "/v1/chat/completions"
NUM_STORED = 2_000


def ask(client, number: int) -> None:
    """Ask one of 40 questions, on behalf of a person."""
    content = f"Question: How many orders have an id above {number % 40}?"
    body = {"model": "agentspec-sql", "messages": [{"role": "user", "content": content}], "temperature": 0}
    tags = {"X-AgentSpec-Stage": f"asked/{number % 8}", "X-AgentSpec-Subject": "ann"}
    client.post(CHAT, json=body, headers=tags).raise_for_status()


def published(place: str):
    """Return the batches of a store's only log."""
    from agentspec.corpus.batch import decode
    from agentspec.corpus.store import START, open_store

    with closing(open_store(place)) as store:
        [scope] = store.stats()
        return [decode(entry.batch, scope.tenant) for entry in store.read(scope, START, 1 << 30)]


def fill(place: str) -> None:
    """Put outputs into a store, as another engine of the bundled model would."""
    from agentspec import Forest
    from agentspec.corpus.corpus import open_corpus
    from agentspec.engine import TorchEngine
    from agentspec.engine.engine_config import EngineConfig
    from agentspec.models import bundled_model_dir

    engine = TorchEngine(EngineConfig(model_path=bundled_model_dir(), threads=1))
    rng = np.random.default_rng(0)
    with closing(open_corpus(place, engine.vocabulary, engine.vocab_size, Forest())) as corpus:
        corpus.start()
        for _ in range(NUM_STORED):
            tokens = rng.integers(0, engine.vocab_size, 60).astype(np.int32)
            corpus.share(StageKey.parse("stored/stage"), tokens)


def learned(client) -> list[float]:
    """Return how many outputs each engine has learned from others."""
    lines = client.get("/metrics").text.splitlines()
    return [
        float(line.rsplit(" ", 1)[1])
        for line in lines
        if line.startswith("agentspec_corpus_learned_outputs_total{")
    ]


def test_engines_come_and_go_with_the_load_and_publish_before_they_go(cluster, tmp_path):
    """None of the outputs is lost when an engine stops."""
    import ray.serve

    from tests.ray.support.cluster import NAME, client_of

    place = str(tmp_path / "corpus")
    limits = {"scale_up_s": 1, "scale_down_s": 2, "target_requests": 1, "requests": 4}
    cluster.deploy(engines=1, max_engines=2, corpus=place, **limits)
    num_asked = 0
    with client_of(cluster) as client, ThreadPoolExecutor(8) as pool:
        deadline_s = time.monotonic() + 300
        while cluster.num_engines() < 2 or num_asked < 400:
            assert time.monotonic() < deadline_s
            list(pool.map(lambda number: ask(client, number), range(num_asked, num_asked + 40)))
            num_asked += 40
    cluster.wait_until(lambda: cluster.num_engines() == 1)
    ray.serve.delete(NAME)
    batches = published(place)
    assert len({batch.origin for batch in batches}) == 2
    assert sum(len(list(batch.outputs)) for batch in batches) == num_asked


def test_an_engine_serves_once_it_has_read_the_corpus(cluster):
    from benchmarks.fleet.places import redis_server
    from tests.ray.support.cluster import ENGINE, client_of

    with redis_server() as store:
        fill(store.url)
        store.stall()
        deploying = threading.Thread(target=cluster.deploy, kwargs={"corpus": store.url, "join_s": 300})
        deploying.start()
        try:
            cluster.wait_until(lambda: bool(cluster.processes(ENGINE)))
            time.sleep(15)  # the engine itself is loaded by then
            assert deploying.is_alive()
        finally:
            store.go_on()
            deploying.join()
        with client_of(cluster) as client:
            assert learned(client) == [NUM_STORED]


def test_an_engine_serves_without_a_corpus_that_does_not_answer(cluster):
    from benchmarks.fleet.places import redis_server
    from tests.ray.support.cluster import client_of

    with redis_server() as store:
        store.stall()
        cluster.deploy(corpus=store.url, join_s=3)
        with client_of(cluster) as client:
            ask(client, 1)
            assert learned(client) == [0]
        store.go_on()


@pytest.fixture(autouse=True)
def _fresh(cluster):
    """Begin without the application: engines of an earlier test must not be taken for new ones."""
    import ray.serve

    from tests.ray.support.cluster import NAME

    ray.serve.delete(NAME)
