"""Servers that get tags: this machine, private networks, the gateway, and those that a program lists.

A tag names agents, workflows and threads, which a public API should not see. The decision uses the name or
address in the URL. Names are not resolved, so no request waits for DNS.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from threading import Lock
from urllib.parse import urlsplit

from agentspec.errors import ConfigError

URL_VARIABLE = "AGENTSPEC_URL"  # the gateway; its host gets tags
HOSTS_VARIABLE = "AGENTSPEC_HOSTS"  # further hosts, separated by commas
DISABLE_VARIABLE = "AGENTSPEC_DISABLE"
ANY_HOST = "*"

Hosts = Iterable[str] | str

_NETWORKS = tuple(
    map(
        ip_network,
        (
            "0.0.0.0/32",  # a server's bind address; for a client it means this machine
            "127.0.0.0/8",
            "10.0.0.0/8",
            "172.16.0.0/12",
            "192.168.0.0/16",
            "169.254.0.0/16",
            "100.64.0.0/10",  # shared: clusters and overlay networks
            "::/128",
            "::1/128",
            "fc00::/7",
            "fe80::/10",
        ),
    )
)
# suffixes of private names; a name without a dot is that of a container or a service
_SUFFIXES = (".localhost", ".local", ".internal", ".home.arpa", ".svc")
_OFF = ("", "0", "false", "no")
_MANY_HOSTS = 1024

logger = logging.getLogger("agentspec.adapters")


def is_disabled(environment: Mapping[str, str] = os.environ) -> bool:
    """True if ``$AGENTSPEC_DISABLE`` is set: no instrumentation, no automatic tags."""
    return environment.get(DISABLE_VARIABLE, "").lower() not in _OFF


class AllowedHosts:
    """The servers that get tags, including those added by active instrumentations."""

    def __init__(self) -> None:
        self._added: list[tuple[object, frozenset[str]]] = []
        self._names: frozenset[str] = frozenset()
        self._lock = Lock()

    def add(self, hosts: Hosts | None) -> Callable[[], None]:
        """Allow these hosts too, until undone.

        Args:
            hosts: names, addresses, ``*.example.com`` or ``*`` for all; URLs and ports are cut to the host.

        Returns:
            function that removes them again.

        Raises:
            ConfigError: an entry is not a host.
        """
        mine = (object(), hosts_in(hosts or ()))
        with self._lock:
            self._change([*self._added, mine])

        def undo() -> None:
            with self._lock:
                self._change([one for one in self._added if one is not mine])

        return undo

    def allow(self, host: str) -> bool:
        """Return True if a server of this name or address gets tags."""
        return _is_allowed(host, self._names, os.environ.get(URL_VARIABLE), os.environ.get(HOSTS_VARIABLE))

    def allow_url(self, url: str | None) -> bool:
        """Return True if the server at this URL gets tags, False if the URL is invalid or missing."""
        host = _url_host(url) if url else None
        return host is not None and self.allow(host)

    def _change(self, added: list[tuple[object, frozenset[str]]]) -> None:
        self._added = added
        self._names = frozenset().union(*(names for _, names in added))


HOSTS = AllowedHosts()


def hosts_in(hosts: Hosts) -> frozenset[str]:
    """Return the hosts in normalized form.

    Raises:
        ConfigError: an entry is not a host.
    """
    texts = hosts.split(",") if isinstance(hosts, str) else list(hosts)
    return frozenset(_listed(text) for text in texts if not isinstance(text, str) or text.strip())


def _listed(text: object) -> str:
    host = None
    if isinstance(text, str):
        stripped = text.strip()
        host = stripped if _address(_plain(stripped)) is not None else _url_host(stripped)
    if not host or any(character.isspace() for character in host):
        raise ConfigError(f"hosts are names such as 'gateway.example.com', addresses, or '*', not {text!r}")
    return _plain(host)


@lru_cache(maxsize=_MANY_HOSTS)
def _url_host(text: str) -> str | None:
    try:
        return urlsplit(text if "://" in text else f"//{text}").hostname
    except ValueError:
        return None


@lru_cache(maxsize=_MANY_HOSTS)
def _is_allowed(host: str, added: frozenset[str], gateway_url: str | None, listed: str | None) -> bool:
    name = _plain(host)
    names = added | _named_by_environment(listed)
    if gateway_url and (gateway := _url_host(gateway_url)):
        names |= {_plain(gateway)}
    if ANY_HOST in names or name in names or _is_private(name):
        return True
    return any(one.startswith("*.") and name.endswith(one[1:]) for one in names)


def _named_by_environment(listed: str | None) -> frozenset[str]:
    try:
        return hosts_in(listed or "")
    except ConfigError as error:
        logger.warning("$%s allows no host: %s", HOSTS_VARIABLE, error)
        return frozenset()


def _plain(host: str) -> str:
    return host.strip("[]").partition("%")[0].rstrip(".").lower()


def _is_private(name: str) -> bool:
    address = _address(name)
    if address is not None:
        return any(address in network for network in _NETWORKS)
    return bool(name) and (("." not in name and ":" not in name) or name.endswith(_SUFFIXES))


def _address(name: str) -> IPv4Address | IPv6Address | None:
    """Parse an address, also in resolver-only forms: ``127.1``, ``0x7f000001``, ``134744072``."""
    try:
        address = ip_address(name)
    except ValueError:
        try:
            return IPv4Address(socket.inet_aton(name))
        except (OSError, ValueError):
            return None
    return getattr(address, "ipv4_mapped", None) or address
