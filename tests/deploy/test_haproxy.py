"""Two real gateways behind the real HAProxy: one is killed, no answer that had not begun is lost."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.deploy.support.holding_engine import HoldingEngine, holding_engine
from tests.deploy.support.two_gateways import (
    GATEWAY_HEADER,
    NAMES,
    WAIT_S,
    TwoGateways,
    haproxy,
    two_gateways,
)
from tests.support.serving import serving

pytestmark = pytest.mark.skipif(haproxy() is None, reason="needs HAProxy: make test-deploy")

CHAT = "/v1/chat/completions"
KILLED, LEFT = NAMES
KEPT_BYTES = 131072  # tune.bufsize
QUESTION = "Question: How many orders are there?"


def body(*, stream: bool = False, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": QUESTION}], "stream": stream, **fields}


def post(root: str, path: str = CHAT, **fields: Any) -> httpx.Response:
    return httpx.post(f"{root}{path}", json=body(**fields), timeout=WAIT_S, trust_env=False)


@pytest.fixture
def engine() -> Iterator[HoldingEngine]:
    with holding_engine() as running:
        yield running


@pytest.fixture
def gateways(engine: HoldingEngine, tmp_path: Path) -> Iterator[TwoGateways]:
    with two_gateways(engine.root, tmp_path) as running:
        yield running


@pytest.fixture
def clients() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as pool:
        yield pool


def sent(
    clients: ThreadPoolExecutor, gateways: TwoGateways, engine: HoldingEngine, path: str = CHAT, **fields: Any
) -> list[Future[httpx.Response]]:
    """Send two requests, one to each gateway: HAProxy chooses the one with fewer connections."""
    futures = []
    for number in (1, 2):
        futures.append(clients.submit(post, gateways.root, path, **fields))
        engine.wait_for(number)
    return futures


def test_answers_that_have_not_begun_come_from_the_other_gateway(
    engine: HoldingEngine, gateways: TwoGateways, clients: ThreadPoolExecutor
) -> None:
    futures = sent(clients, gateways, engine, user="x" * 100_000)
    gateways.processes[KILLED].send_signal(signal.SIGKILL)
    engine.wait_for(3)  # the request of the killed gateway, again
    engine.release()
    responses = [future.result() for future in futures]
    assert [response.status_code for response in responses] == [200, 200]
    assert {response.headers[GATEWAY_HEADER] for response in responses} == {LEFT}
    assert engine.received == [CHAT] * 3


@pytest.mark.parametrize(
    ("path", "num_bytes"), [("/v1/embeddings", 10), (CHAT, KEPT_BYTES)], ids=["may-change-something", "long"]
)
def test_other_requests_are_sent_once(
    path: str, num_bytes: int, engine: HoldingEngine, gateways: TwoGateways, clients: ThreadPoolExecutor
) -> None:
    futures = sent(clients, gateways, engine, path, user="x" * num_bytes)
    gateways.processes[KILLED].send_signal(signal.SIGKILL)
    lost = next(as_completed(futures)).result()
    assert lost.status_code == 502
    assert lost.json()["error"]["code"] == "gateway_lost"
    engine.release()
    assert sorted(future.result().status_code for future in futures) == [200, 502]
    assert engine.received == [path] * 2


def test_a_stream_that_has_begun_is_cut_and_the_other_ends_well(
    engine: HoldingEngine, gateways: TwoGateways
) -> None:
    with streaming(gateways.root) as one, streaming(gateways.root) as other:
        by_gateway = {stream.headers[GATEWAY_HEADER]: stream for stream in (one, other)}
        assert set(by_gateway) == set(NAMES)
        parts = {name: stream.iter_raw() for name, stream in by_gateway.items()}
        assert all(b"data" in next(part) for part in parts.values())  # HAProxy holds no event back
        gateways.processes[KILLED].send_signal(signal.SIGKILL)
        with pytest.raises(httpx.RemoteProtocolError):
            list(parts[KILLED])
        engine.release()
        assert b"".join(parts[LEFT]).endswith(b"data: [DONE]\n\n")
    assert len(engine.received) == 2


@contextmanager
def streaming(root: str) -> Iterator[httpx.Response]:
    with httpx.stream(
        "POST", f"{root}{CHAT}", json=body(stream=True), timeout=WAIT_S, trust_env=False
    ) as response:
        yield response


def test_a_gateway_that_ends_finishes_its_answers(
    engine: HoldingEngine, gateways: TwoGateways, clients: ThreadPoolExecutor
) -> None:
    futures = sent(clients, gateways, engine)
    gateways.processes[KILLED].send_signal(signal.SIGTERM)
    gateways.wait_for(LEFT)
    engine.release()
    assert [future.result().status_code for future in futures] == [200, 200]
    assert {future.result().headers[GATEWAY_HEADER] for future in futures} == set(NAMES)
    assert engine.received == [CHAT] * 2


def test_readiness_decides_who_gets_requests(engine: HoldingEngine, gateways: TwoGateways) -> None:
    engine.is_well = False
    gateways.wait_for()
    refused = post(gateways.root)
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
    assert refused.json()["error"]["code"] == "no_gateway"
    engine.is_well = True
    gateways.wait_for(*NAMES)
    engine.release()
    assert post(gateways.root).status_code == 200


def test_a_client_that_leaves_stops_its_generation(engine: HoldingEngine, gateways: TwoGateways) -> None:
    leaving = httpx.Timeout(WAIT_S, read=1)
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{gateways.root}{CHAT}", json=body(), timeout=leaving, trust_env=False)
    engine.wait_for_left(1)


@dataclass
class Outcome:
    """One request under load: the gateway whose answer began, if one did, and the failure, if it failed."""

    sent_after_kill: bool
    gateway: str = ""
    failure: str = ""


@dataclass
class Load:
    """Clients that send one request after another, every other one a stream, until :meth:`end`."""

    root: str
    outcomes: list[Outcome] = field(default_factory=list)
    is_killed: bool = False

    def __post_init__(self) -> None:
        self._is_over = threading.Event()
        self._changed = threading.Condition()
        self._streams: dict[str, int] = dict.fromkeys(NAMES, 0)

    def run(self, number: int) -> None:
        with httpx.Client(timeout=WAIT_S, trust_env=False) as client:
            while not self._is_over.is_set():
                number += 1
                outcome = Outcome(self.is_killed)
                try:
                    self._send(client, outcome, stream=number % 2 == 0)
                except (httpx.HTTPError, AssertionError) as error:
                    outcome.failure = repr(error)
                with self._changed:
                    self.outcomes.append(outcome)
                    self._changed.notify_all()

    def _send(self, client: httpx.Client, outcome: Outcome, *, stream: bool) -> None:
        fields = body(stream=stream, temperature=0, max_tokens=100, ignore_eos=True)
        with client.stream("POST", f"{self.root}{CHAT}", json=fields) as response:
            assert response.status_code == 200, response.read()
            outcome.gateway = response.headers[GATEWAY_HEADER]
            with self._counted(outcome.gateway, stream):
                text = response.read()
            assert text.endswith(b"data: [DONE]\n\n") if stream else json.loads(text)["choices"]

    @contextmanager
    def _counted(self, gateway: str, stream: bool) -> Iterator[None]:
        with self._changed:
            self._streams[gateway] += stream
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._streams[gateway] -= stream

    def kill_while_it_streams(self, gateways: TwoGateways) -> None:
        """Kill the gateway while it sends two streams or more, after 20 whole answers."""
        with self._changed:
            assert self._changed.wait_for(
                lambda: len(self.outcomes) >= 20 and self._streams[KILLED] >= 2, 2 * WAIT_S
            )
            gateways.processes[KILLED].send_signal(signal.SIGKILL)
            self.is_killed = True

    def wait_for_new(self, number: int) -> None:
        with self._changed:
            assert self._changed.wait_for(
                lambda: sum(outcome.sent_after_kill for outcome in self.outcomes) >= number, 4 * WAIT_S
            )

    def end(self) -> None:
        self._is_over.set()


@pytest.mark.slow
def test_a_gateway_is_killed_under_load(tmp_path: Path, clients: ThreadPoolExecutor) -> None:
    with ExitStack() as stack:
        _, engine_url = stack.enter_context(serving("--log-level", "error", "--threads", "1"))
        gateways = stack.enter_context(two_gateways(engine_url, tmp_path))
        load = Load(gateways.root)
        running = [clients.submit(load.run, number) for number in range(12)]
        try:
            load.kill_while_it_streams(gateways)
            load.wait_for_new(40)
        finally:
            load.end()
        for client in running:
            client.result()
    failed = [outcome for outcome in load.outcomes if outcome.failure]
    assert failed  # streams that had begun on the killed gateway
    assert {outcome.gateway for outcome in failed} == {KILLED}, failed
    assert not any(outcome.sent_after_kill for outcome in failed), failed
    assert {outcome.gateway for outcome in load.outcomes if outcome.sent_after_kill} == {LEFT}
    assert {outcome.gateway for outcome in load.outcomes if not outcome.failure} == set(NAMES)
