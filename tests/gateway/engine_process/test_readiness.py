"""A gateway with its own engine, served by one process."""

from __future__ import annotations

import asyncio
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import httpx
import pytest

from tests.gateway.support.live import TIMEOUT_S
from tests.support.ports import reserved_port

HUNG_UP = (httpx.NetworkError, httpx.RemoteProtocolError)  # or refused; not a time-out
ENGINE_SERVER = Path(__file__).parents[1] / "support" / "engine_server.py"
CODE = """
import sys
from agentspec.gateway import *
from agentspec.gateway.server import bind
root, port, *argv = sys.argv[1:]
shutdown = GracefulShutdown()
app = create_app(Fleet(FleetSettings(upstreams=[UpstreamSettings(url=root)])), shutdown=shutdown)
engine = EngineSupervisor(EngineCommand([sys.executable, *argv]), root)
with bind("127.0.0.1", int(port)) as bound:
    serve(app, bound, shutdown, on_ready=lambda: print("ready", flush=True), engine=engine)
"""


@asynccontextmanager
async def gateway(folder: Path, way: str) -> AsyncIterator[tuple[Process, httpx.AsyncClient]]:
    """Yield the process and a client for it as soon as it listens."""
    with reserved_port() as port, reserved_port() as engine_port:
        async with gateway_on(port, engine_port, folder, way) as running:
            yield running


@asynccontextmanager
async def gateway_on(
    port: int, engine_port: int, folder: Path, way: str
) -> AsyncIterator[tuple[Process, httpx.AsyncClient]]:
    argv = (str(ENGINE_SERVER), str(engine_port), str(folder / "starts"), way)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", CODE, f"http://127.0.0.1:{engine_port}", str(port), *argv),
        stdout=asyncio.subprocess.PIPE,
    )
    url = f"http://127.0.0.1:{port}"
    try:
        async with httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S, trust_env=False) as client:
            await until_it_listens(client, process)
            yield process, client
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def until_it_listens(client: httpx.AsyncClient, process: Process) -> None:
    """Wait until it listens or exits. A process that fails may exit first."""
    async with asyncio.timeout(TIMEOUT_S):
        while process.returncode is None:
            try:
                await client.get("/health")
            except HUNG_UP:
                await asyncio.sleep(0.02)
            else:
                return


async def until_it_is_ending(client: httpx.AsyncClient) -> None:
    """Wait until it refuses connections. An engine stopped before that would have exited by now."""
    async with asyncio.timeout(TIMEOUT_S):
        with suppress(*HUNG_UP):
            while True:
                await client.get("/health", headers={"connection": "close"})
                await asyncio.sleep(0.02)


async def ready(process: Process) -> None:
    assert process.stdout is not None
    assert await asyncio.wait_for(process.stdout.readline(), TIMEOUT_S) == b"ready\n"


@pytest.mark.parametrize("path", ["/v1/models", "/stages/a/b/v1/models", "/agentspec/stages"])
async def test_while_the_engine_starts_clients_are_told_to_come_back(tmp_path: Path, path: str) -> None:
    async with gateway(tmp_path, "slow") as (process, client):
        told = await client.get(path)
        health = await client.get("/health")
        assert (health.status_code, health.json()) == (503, {"status": "starting"})
        assert (told.status_code, told.headers["retry-after"]) == (503, "5")
        assert told.json()["error"]["code"] == "engine_starting"
        assert (await client.get("/metrics")).status_code == 200
        (tmp_path / "go").touch()
        await ready(process)
        assert (await client.get("/health")).json() == {"status": "ok"}
        assert (await client.get("/v1/models")).status_code == 200


async def test_requests_under_way_end_before_the_engine(tmp_path: Path) -> None:
    async with gateway(tmp_path, "") as (process, client):
        await ready(process)
        answer = asyncio.create_task(client.post("/v1/completions", json={"prompt": "x"}))
        async with asyncio.timeout(TIMEOUT_S):
            while not (tmp_path / "posted").exists():  # noqa: ASYNC110 (another process sets no event)
                await asyncio.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        await until_it_is_ending(client)
        (tmp_path / "go").touch()
        assert (await answer).status_code == 200
        assert await asyncio.wait_for(process.wait(), TIMEOUT_S) == 0


async def test_an_engine_that_does_not_start_ends_the_gateway(tmp_path: Path) -> None:
    async with gateway(tmp_path, "fails") as (process, _):
        assert await asyncio.wait_for(process.wait(), TIMEOUT_S) == 1
