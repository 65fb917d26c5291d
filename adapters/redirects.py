"""HTTPX redirects: remove the tags of a call that is redirected to a server without tags.

HTTPX itself removes only ``Authorization``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache, wraps
from importlib import import_module
from typing import Any

from agentspec.adapters.allowed_hosts import HOSTS
from agentspec.adapters.replacement import Tagging
from agentspec.wire import HEADER_PREFIX

_METHOD = "_redirect_headers"


def _guarding(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def redirect_headers(client: Any, request: Any, url: Any, method: str) -> Any:
        headers = original(client, request, url, method)
        if url.host != request.url.host and not HOSTS.allow(url.host):
            for name in [name for name in headers if name.startswith(HEADER_PREFIX)]:
                del headers[name]
        return headers

    return redirect_headers


def redirects() -> list[Tagging]:
    """Return a guard for the redirects of each HTTP library that ``openai`` clients may use.

    Version 3 of ``openai`` uses ``httpx2`` and also accepts ``httpx`` clients.
    """
    return [_redirects_of(name) for name in ("httpx", "httpx2") if name == "httpx" or name in sys.modules]


@cache
def _redirects_of(library: str) -> Tagging:
    client: type = import_module(library).Client
    owner = next((owner for owner in client.__mro__ if _METHOD in vars(owner)), client)
    return Tagging((owner, _METHOD, _guarding))
