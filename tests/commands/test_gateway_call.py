"""Messages of every gateway command when there is no gateway or the gateway wants a key."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from agentspec.cli import main
from agentspec.gateway import ApiKeys, RuntimeConfig
from agentspec.gateway.auth.middleware import AuthMiddleware
from tests.gateway.support.live import serving_app

COMMANDS = [["forest", "stats"], ["stages", "list"], ["top", "--once"], ["run"]]
each_command = pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])


def not_found(request: Request) -> JSONResponse:
    return JSONResponse({"detail": "Not Found"}, 404)


@pytest.fixture(scope="module")
def locked_url() -> Iterator[str]:
    app = Starlette(routes=[Route("/{path:path}", not_found)])
    with serving_app(AuthMiddleware(app, RuntimeConfig(ApiKeys.parse(["acme-key=acme"])))) as root:
        yield root


def said(command: list[str], url: str, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    program = ["--", "true"] if command == ["run"] else []
    assert main([*command, "--url", url, *options, *program]) == 1
    told = capsys.readouterr().err
    assert told.startswith("agentspec: error: ")
    return told


@each_command
@pytest.mark.parametrize("key", [None, "wrong", "clé"])
def test_a_key_that_is_missing_or_wrong(
    command: list[str], key: str | None, locked_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    told = said(command, locked_url, capsys, *([] if key is None else ["--key", key]))
    assert "the server refused: " in told
    assert "--key, $AGENTSPEC_API_KEY" in told


@each_command
def test_no_server_there(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as bound:  # the port is taken, but no server listens
        bound.bind(("127.0.0.1", 0))
        told = said(command, f"http://127.0.0.1:{bound.getsockname()[1]}", capsys)
    assert "no answer from http://127.0.0.1:" in told
    assert "`agentspec serve`" in told
    assert "--url, $AGENTSPEC_URL" in told
    assert ("--serve" in told) is (command == ["run"])


@each_command
def test_another_server(command: list[str], locked_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    told = said(command, locked_url, capsys, "--key", "acme-key")
    assert "is no AgentSpec gateway: status 404" in told
    assert "--url, $AGENTSPEC_URL" in told
