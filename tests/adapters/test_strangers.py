"""Tags and unknown hosts: local servers with other names record the requests that leave the process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import httpx2
import openai
import pytest
from openai._base_client import BaseClient

from agentspec.adapters import allowed_hosts
from agentspec.adapters.caller import Caller, calling
from agentspec.adapters.headers import Tag
from agentspec.adapters.openai import instrument, stage
from agentspec.commands.run.environment import Run, run_environment
from agentspec.errors import ConfigError
from tests.adapters.support.strangers import PUBLIC, Server, serving_every_name

ASKED: Any = {"model": "scripted", "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture
def server() -> Iterator[Server]:
    with serving_every_name() as server:
        yield server


Ask = Callable[..., None]


@pytest.fixture(params=["httpx", "httpx2"])
def ask(request: pytest.FixtureRequest, server: Server) -> Ask:
    library: Any = {"httpx": httpx, "httpx2": httpx2}[request.param]

    def ask_at(host: str, extra_headers: Any = None) -> None:
        client = library.Client(trust_env=False, follow_redirects=True)
        url = f"http://{host}:{server.server_port}/v1"
        with openai.OpenAI(base_url=url, api_key="none", max_retries=0, http_client=client) as asking:
            asking.chat.completions.create(**ASKED, extra_headers=extra_headers)

    return ask_at


def test_a_stranger_gets_no_tag(server: Server, ask: Ask) -> None:
    undo = instrument(workflow="secret-project")
    with stage("fraud_check_vip", session="thread-7"):
        for host in ("127.0.0.1", "localhost", "gateway", "gw.agents.svc", PUBLIC):
            ask(host)
    undo()
    tags = {
        "x-agentspec-stage": "secret-project/fraud_check_vip",
        "x-agentspec-session": "thread-7",
    }
    names = ("127.0.0.1", "localhost", "gateway", "gw.agents.svc")
    assert server.tags() == [*((name, tags) for name in names), (PUBLIC, {})]


async def test_asynchronous_clients_too(server: Server) -> None:
    undo = instrument(workflow="flow")
    for host in ("gateway", PUBLIC):
        client = httpx2.AsyncClient(trust_env=False)
        url = f"http://{host}:{server.server_port}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="none", http_client=client) as asking:
            await asking.chat.completions.create(**ASKED)
    undo()
    assert server.tags() == [("gateway", {"x-agentspec-workflow": "flow"}), (PUBLIC, {})]


@pytest.mark.parametrize("hosts", [[PUBLIC], "*", ["*.example.com"]])
def test_hosts_widen_until_it_is_undone(server: Server, ask: Ask, hosts: Any) -> None:
    undo, undo_other = instrument(workflow="flow", hosts=hosts), instrument(workflow="other")
    ask(PUBLIC)
    undo()
    ask(PUBLIC)
    undo_other()
    assert server.tags() == [(PUBLIC, {"x-agentspec-workflow": "other"}), (PUBLIC, {})]


def test_the_gateway_of_the_environment(server: Server, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTSPEC_URL", f"https://{PUBLIC}")
    undo = instrument(workflow="flow")
    ask(PUBLIC)
    ask("other.example.com")
    undo()
    assert server.tags() == [(PUBLIC, {"x-agentspec-workflow": "flow"}), ("other.example.com", {})]


def test_headers_by_hand_are_a_persons_wish(server: Server, ask: Ask) -> None:
    undo = instrument(workflow="flow")
    ask(PUBLIC, {"X-AgentSpec-Stage": "mine", "X-AgentSpec-Session": Tag("an adapter's")})
    undo()
    assert server.tags() == [(PUBLIC, {"x-agentspec-stage": "mine"})]


@pytest.mark.parametrize("target", [PUBLIC, "localhost"])
def test_a_redirect_takes_no_tag_to_a_stranger(server: Server, ask: Ask, target: str) -> None:
    original = [vars(client.__mro__[1])["_redirect_headers"] for client in (httpx.Client, httpx2.Client)]
    undo = instrument(workflow="flow")
    server.redirect = f"http://{target}:{server.server_port}/v1/chat/completions"
    ask("gateway", {"X-AgentSpec-Max-Draft": "0"})
    undo()
    tags = {"x-agentspec-workflow": "flow", "x-agentspec-max-draft": "0"}
    assert server.tags() == [("gateway", tags), (target, tags if target == "localhost" else {})]
    after = [vars(client.__mro__[1])["_redirect_headers"] for client in (httpx.Client, httpx2.Client)]
    assert after == original


def test_the_session_of_a_run_goes_to_no_stranger(
    server: Server, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTSPEC_RUN_SESSION", "run-1")
    undo = instrument(workflow="my flow")
    ask("gateway")
    server.redirect = f"http://{PUBLIC}:{server.server_port}/v1/chat/completions"
    ask("gateway")
    ask(PUBLIC)
    ask("gateway", {"X-Session-ID": "mine"})
    with stage("plan", session="thread-7"):
        ask("gateway")
    undo()
    flow = {"x-agentspec-workflow": "my%20flow"}
    tagged = ("gateway", {**flow, "x-agentspec-session": "run-1"})
    assert server.tags() == [
        tagged,
        tagged,
        (PUBLIC, {}),
        (PUBLIC, {}),
        ("gateway", {**flow, "x-session-id": "mine"}),
        ("gateway", {"x-agentspec-stage": "my%20flow/plan", "x-agentspec-session": "thread-7"}),
    ]


def test_disabled_nothing_is_changed(server: Server, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTSPEC_DISABLE", "1")
    original = vars(BaseClient)["_build_request"]
    undo = instrument(workflow="flow", hosts="*")
    assert vars(BaseClient)["_build_request"] is original
    with calling(Caller(role=("writer",))):
        ask("gateway")
    undo()
    assert server.tags() == [("gateway", {})]


def test_hosts_that_are_none_change_nothing() -> None:
    original = vars(BaseClient)["_build_request"]
    with pytest.raises(ConfigError, match="a b"):
        instrument(hosts=["a b"])
    assert vars(BaseClient)["_build_request"] is original
    assert not allowed_hosts.HOSTS.allow(PUBLIC)


def test_a_run_that_is_disabled_instruments_nothing() -> None:
    given = {"AGENTSPEC_DISABLE": "1"}
    environment, _ = run_environment(Run("http://gw.example.com", None, "run-1", "flow"), given)
    assert environment["OPENAI_BASE_URL"] == "http://gw.example.com/v1"
    code = "import sys, openai; print([type(one).__name__ for one in sys.meta_path][0] == 'Waiting')"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"
