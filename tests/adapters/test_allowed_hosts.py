"""Hosts that receive tags, decided by the address or name in the URL, without a look-up."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from agentspec.adapters.allowed_hosts import HOSTS, AllowedHosts, hosts_in
from agentspec.errors import ConfigError

OURS = """127.0.0.1 127.8.9.1 0.0.0.0 10.1.2.3 172.16.0.1 172.31.255.255 192.168.1.7 169.254.1.1 100.64.0.1
::1 [::1] fd12::1 fe80::1%eth0 ::ffff:10.0.0.1 127.1 0x7f000001 2130706433 localhost LOCALHOST. app.localhost
gateway vllm_server agentspec.default.svc agentspec.default.svc.cluster.local printer.local
host.docker.internal ip-10-0-0-1.ec2.internal router.home.arpa""".split()
STRANGERS = """api.openai.com secret.openai.azure.com 8.8.8.8 172.32.0.1 192.169.0.1 100.128.0.1 11.0.0.1
2001:4860:4860::8888 ::ffff:8.8.8.8 134744072 0x08080808 8.525320 localhost.example.com 10.0.0.1.example.com
internal.example.com xlocal.com local.com agentspec.default""".split()


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AGENTSPEC_URL", raising=False)
    monkeypatch.delenv("AGENTSPEC_HOSTS", raising=False)

    def look_up(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError(f"a name was looked up: {args}")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(socket, "gethostbyname", look_up)


@pytest.mark.parametrize("host", OURS)
def test_private_hosts_get_tags(host: str) -> None:
    assert HOSTS.allow(host)


@pytest.mark.parametrize("host", STRANGERS)
def test_strangers_get_none(host: str) -> None:
    assert not HOSTS.allow(host)


@pytest.mark.parametrize(
    ("hosts", "host", "is_allowed"),
    [
        (["gw.example.com"], "gw.example.com", True),
        (["gw.example.com"], "GW.example.com.", True),
        (["gw.example.com"], "a.gw.example.com", False),
        (["gw.example.com"], "agw.example.com", False),
        (["https://gw.example.com:8443/v1"], "gw.example.com", True),
        (["gw.example.com:8443"], "gw.example.com", True),
        (["8.8.8.8"], "8.8.8.8", True),
        (["[2001:db8::1]:8000"], "2001:db8::1", True),
        (["2001:db8::1"], "2001:db8::1", True),
        (["*.example.com"], "gw.example.com", True),
        (["*.example.com"], "example.com", False),
        (["*.example.com"], "badexample.com", False),
        ("*", "api.openai.com", True),
        (["*"], "api.openai.com", True),
        ("a.example.com, b.example.com", "b.example.com", True),
    ],
)
def test_hosts_widen(hosts: Any, host: str, is_allowed: bool) -> None:
    allowed = AllowedHosts()
    undo = allowed.add(hosts)
    assert allowed.allow(host) == is_allowed
    undo()
    undo()
    assert not allowed.allow(host)


def test_the_environment_widens(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not HOSTS.allow("gw.example.com")
    monkeypatch.setenv("AGENTSPEC_URL", "https://gw.example.com/v1")
    assert HOSTS.allow("gw.example.com")
    monkeypatch.setenv("AGENTSPEC_HOSTS", "a.example.com,b.example.com")
    assert HOSTS.allow("b.example.com")
    assert not HOSTS.allow("api.openai.com")


def test_a_bad_list_in_the_environment_allows_nobody(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("AGENTSPEC_HOSTS", "not a host")
    assert not HOSTS.allow("not-this-one.example.com")
    assert "AGENTSPEC_HOSTS" in caplog.text


@pytest.mark.parametrize("bad", [["a b"], ["http://"], [None], [7], ["[a"]])
def test_what_is_no_host_is_refused(bad: Any) -> None:
    with pytest.raises(ConfigError, match="hosts"):
        hosts_in(bad)


@pytest.mark.parametrize("url", [None, "", "http://[::1", "http:///v1"])
def test_what_is_no_url_is_a_stranger(url: str | None) -> None:
    assert not HOSTS.allow_url(url)
