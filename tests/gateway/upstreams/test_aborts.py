"""A disconnect of the client cancels its request in the engine, in every phase."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from agentspec.gateway.call import Endpoint
from tests.gateway.support.leaving import asking, eventually
from tests.gateway.support.live import TIMEOUT_S, post, serving_proxy
from tests.gateway.support.misbehaving import Misbehaving, misbehaving
from tests.gateway.support.telemetry import num_waiting, scrape


@pytest.fixture
def engine() -> Iterator[Misbehaving]:
    with misbehaving() as engine:
        yield engine


def has_left(root: str) -> bool:
    """Return True if the gateway has finished a request of a disconnected client."""
    samples = scrape(root).items()
    return any(
        name == "agentspec_gateway_requests_total" and ("status", "499") in labels
        for (name, labels), _ in samples
    )


@pytest.mark.parametrize("endpoint", list(Endpoint))
@pytest.mark.parametrize("way", ["hangs", "hangs in the head", "hangs in the body", "hangs in the stream"])
def test_while_the_engine_works(engine: Misbehaving, endpoint: Endpoint, way: str) -> None:
    with serving_proxy(engine.url) as root:
        with asking(root, endpoint, way) as connection:
            assert engine.has_request.wait(TIMEOUT_S)
            if way in ("hangs in the body", "hangs in the stream"):
                assert connection.recv(1)
            assert engine.num_open == 1
        assert engine.has_lost.wait(TIMEOUT_S)
        assert eventually(lambda: engine.num_open == 0)


@pytest.mark.parametrize("endpoint", list(Endpoint))
def test_in_the_midst_of_a_flood(engine: Misbehaving, endpoint: Endpoint) -> None:
    """Both sides' buffers are full, so no data moves when the client disconnects."""
    with serving_proxy(engine.url) as root:
        with asking(root, endpoint, "streams for ever") as connection:
            assert connection.recv(1)
            assert not engine.has_lost.wait(0.2)
        assert engine.has_lost.wait(TIMEOUT_S)


@pytest.mark.parametrize("endpoint", list(Endpoint))
def test_while_it_waits_in_line(engine: Misbehaving, endpoint: Endpoint) -> None:
    with serving_proxy(engine.url, settings={"max_concurrent": 1}) as root:
        with asking(root, endpoint, "hangs"):
            assert engine.has_request.wait(TIMEOUT_S)
            with asking(root, endpoint, "hangs"):
                assert eventually(lambda: num_waiting(root) == 1)
            assert eventually(lambda: has_left(root))
            assert not engine.has_lost.is_set()
            assert engine.num_posts == 1
        assert engine.has_lost.wait(TIMEOUT_S)
        assert post(root, {"prompt": "hi"}, "/v1/completions").content == b"{}"
        assert engine.num_posts == 2  # the queued one was never sent


@pytest.mark.parametrize("endpoint", list(Endpoint))
def test_during_the_pause_before_a_retry(engine: Misbehaving, endpoint: Endpoint) -> None:
    with serving_proxy(engine.url, fleet={"retries": {"backoff_s": 1000}}) as root:
        with asking(root, endpoint, "hangs up at once"):
            assert engine.has_lost.wait(TIMEOUT_S)
        assert eventually(lambda: has_left(root))
        assert engine.num_posts == 1


@pytest.mark.parametrize("endpoint", list(Endpoint))
def test_during_the_upload(engine: Misbehaving, endpoint: Endpoint) -> None:
    with serving_proxy(engine.url) as root:
        with asking(root, endpoint, "well", missing=3):
            assert not engine.has_request.wait(0.1)
        assert post(root, {"prompt": "hi"}, "/v1/completions").content == b"{}"
        assert engine.num_posts == 1
