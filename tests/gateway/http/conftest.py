"""Fixtures for tests of the HTTP server."""

from __future__ import annotations

import pytest

from agentspec.gateway.http.protocol import HttpProtocol


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the sizes in bytes of all the gateway's reads."""
    sizes: list[int] = []
    receive = HttpProtocol.data_received

    def data_received(self: HttpProtocol, data: bytes) -> None:
        sizes.append(len(data))
        receive(self, data)

    monkeypatch.setattr(HttpProtocol, "data_received", data_received)
    return sizes
