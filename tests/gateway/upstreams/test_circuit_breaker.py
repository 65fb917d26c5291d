"""When a circuit breaker opens, and to which tenants."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import httpx
import pytest

from agentspec.gateway import ApiKeys
from agentspec.gateway.upstreams.circuit_breaker import Circuit, CircuitBreaker
from tests.gateway.support.live import chat_body, post, serving_proxy


class Clock:
    """A manual clock, in seconds."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def breaker(clock: Clock) -> CircuitBreaker:
    return CircuitBreaker(4, 0.0, 10.0, clock)


def is_open(breaker: CircuitBreaker) -> tuple[bool, bool]:
    """Return the breaker's state for the tenants a and b."""
    return breaker.is_open("a"), breaker.is_open("b")


def fail(breaker: CircuitBreaker, *failures: str) -> None:
    """Record failures such as "a1": the tenant and the body, one character each."""
    for tenant, body in failures:
        breaker.enter(tenant)
        breaker.fail(tenant, ord(body))
        breaker.forget(tenant)


def test_a_circuit_opens_tries_and_closes(clock: Clock) -> None:
    circuit = Circuit(2, 0.0, 10.0, clock)
    for num_failed in (1, 2):
        circuit.enter()
        circuit.fail(num_failed)
        assert circuit.is_open is (num_failed == 2)
    assert circuit.reopens_in_s == 10
    clock.now_s = 10.0
    assert not circuit.is_open
    circuit.enter()
    assert circuit.is_open  # one request is the trial, the others wait for its outcome
    circuit.fail(3)
    assert circuit.is_open
    clock.now_s = 20.0
    circuit.enter()
    circuit.forget()  # the trial's client has disconnected
    assert not circuit.is_open
    circuit.enter()
    circuit.succeed()
    assert not circuit.is_open
    circuit.enter()
    circuit.fail(1)
    assert not circuit.is_open


def test_a_row_of_failures_in_a_moment_opens_no_circuit(clock: Clock) -> None:
    circuit = Circuit(2, 1.0, 10.0, clock)
    for now_s, num_failed, opens in ((0.0, 1, False), (0.1, 2, False), (0.9, 3, False)):
        clock.now_s = now_s
        circuit.fail(num_failed)
        assert circuit.is_open is opens
    circuit.succeed()
    for now_s, num_failed, opens in ((1.1, 1, False), (2.0, 2, False), (2.1, 3, True)):
        clock.now_s = now_s
        circuit.fail(num_failed)
        assert circuit.is_open is opens


def test_one_tenant_closes_an_engine_to_itself_alone(breaker: CircuitBreaker) -> None:
    fail(breaker, "a1", "a2", "a3")
    assert is_open(breaker) == (False, False)
    fail(breaker, "a4")
    assert is_open(breaker) == (True, False)
    assert breaker.is_open_to_any
    assert (breaker.reopens_in_s("a"), breaker.reopens_in_s("b")) == (10, 0)
    fail(breaker, *(f"a{body}" for body in "56789"))
    assert is_open(breaker) == (True, False)


def test_a_body_counts_once(breaker: CircuitBreaker) -> None:
    fail(breaker, *["a1"] * 20, *["b1"] * 20)
    assert is_open(breaker) == (False, False)
    fail(breaker, *(f"{tenant}1" for tenant in "cdefgh"))
    assert is_open(breaker) == (False, False)


def test_several_tenants_in_a_row_close_it_to_all(breaker: CircuitBreaker) -> None:
    fail(breaker, "a1", "a2", "b3")
    assert not breaker.is_open("c")
    fail(breaker, "b4")
    assert breaker.is_open("c")


def test_no_tenant_counts_for_more_than_half(breaker: CircuitBreaker) -> None:
    fail(breaker, *(f"a{body}" for body in "12345678"), "bx")
    assert is_open(breaker) == (True, False)
    fail(breaker, "by")
    assert is_open(breaker) == (True, True)


def test_an_answer_ends_the_row(breaker: CircuitBreaker) -> None:
    fail(breaker, "a1", "a2", "b3")
    breaker.succeed("c")
    fail(breaker, "b4")
    assert is_open(breaker) == (False, False)
    fail(breaker, "a5", "a6")  # a's own sequence continues
    assert breaker.is_open("a")


def test_an_engine_out_of_reach_is_that_for_all(breaker: CircuitBreaker) -> None:
    for _ in range(4):
        assert is_open(breaker) == (False, False)
        breaker.enter("a")
        breaker.fail_to_connect()
        breaker.forget("a")
    assert is_open(breaker) == (True, True)


def test_one_tries_and_closes_it_for_all(breaker: CircuitBreaker, clock: Clock) -> None:
    fail(breaker, "a1", "a2", "b3", "b4")
    clock.now_s = 10.0
    assert is_open(breaker) == (False, False)
    breaker.enter("a")
    assert is_open(breaker) == (True, True)
    breaker.succeed("a")
    assert is_open(breaker) == (False, False)
    assert not breaker.is_open_to_any


def test_a_try_that_fails_closes_it_to_that_tenant(breaker: CircuitBreaker, clock: Clock) -> None:
    """Another tenant may try. Otherwise a tenant that always fails first would lock out the others."""
    fail(breaker, "a1", "a2", "b3", "b4")
    clock.now_s = 10.0
    fail(breaker, "a1")
    assert is_open(breaker) == (True, False)
    fail(breaker, "b3")
    assert is_open(breaker) == (True, True)


def test_a_try_that_does_not_connect_closes_it_to_all(breaker: CircuitBreaker, clock: Clock) -> None:
    for _ in range(4):
        breaker.fail_to_connect()
    clock.now_s = 10.0
    breaker.enter("a")
    breaker.fail_to_connect()
    assert is_open(breaker) == (True, True)


class _FailsOnDemand(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body: dict[str, Any] = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.send_response(500 if body.get("user", "").startswith("bad") else 200)
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *args: Any) -> None:
        pass


@contextmanager
def failing_on_demand() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _FailsOnDemand) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_in_a_gateway_a_tenant_that_fails_harms_no_other() -> None:
    keys = ApiKeys.parse(["bad=a", "good=b"])
    fleet = {"health": {"num_failures": 5, "failing_s": 0, "open_s": 600}}

    def ask(root: str, key: str, user: str) -> httpx.Response:
        return post(root, chat_body(user=user), authorization=f"Bearer {key}")

    with failing_on_demand() as url, serving_proxy(url, keys=keys, fleet=fleet) as root:
        assert [ask(root, "bad", "bad").status_code for _ in range(20)] == [500] * 20
        statuses = [ask(root, "bad", f"bad {number}").status_code for number in range(6)]
        assert statuses == [500] * 4 + [503] * 2
        assert ask(root, "bad", "well").json()["error"]["code"] == "no_upstream"
        assert ask(root, "good", "well").status_code == 200
