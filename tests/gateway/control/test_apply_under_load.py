"""A fleet reconfigured under load: no request fails."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import httpx

from agentspec.gateway import Fleet, FleetSettings, UpstreamSettings
from tests.gateway.support.live import TIMEOUT_S, chat_body, serving, serving_engine
from tests.gateway.support.scripted import STEPS, ScriptedEngine

NUM_CLIENTS = 4
NUM_CHANGES = 12


class Within(Fleet):
    """A fleet that records its event loop."""

    async def start(self) -> None:
        self.loop = asyncio.get_running_loop()
        await super().start()

    async def take(self, settings: FleetSettings) -> None:
        self.apply(settings)


def settings_of(urls: list[str], change: int) -> FleetSettings:
    """Return settings that add and remove engines, change limits, or replace all connections."""
    chosen = [urls[change % 3], urls[(change + 1) % 3]][: 1 + change % 2]
    upstreams = tuple(UpstreamSettings(url=url, max_concurrent=2 + change % 3) for url in chosen)
    return FleetSettings.model_validate(
        {
            "upstreams": upstreams,
            "timeouts": {"first_byte_s": 60 + change // 4},
            "routing": {"max_waiting": 100},
        }
    )


def test_no_request_fails_while_engines_come_and_go() -> None:
    engines = [ScriptedEngine() for _ in range(3)]
    with ExitStack() as stack:
        urls = [stack.enter_context(serving_engine(engine)) for engine in engines]
        fleet = Within(settings_of(urls, 0))
        root = stack.enter_context(serving(fleet))
        ended = threading.Event()

        def ask(number: int) -> int:
            asked = 0
            with httpx.Client(base_url=root, timeout=TIMEOUT_S) as client:
                while not ended.is_set():
                    is_stream = bool((number + asked) % 2)
                    answer = client.post("/v1/chat/completions", json=chat_body(stream=is_stream))
                    assert answer.status_code == 200, answer.text
                    assert answer.text.count(STEPS[-1]) >= 1
                    assert not is_stream or answer.text.endswith("data: [DONE]\n\n")
                    asked += 1
            return asked

        with ThreadPoolExecutor(NUM_CLIENTS) as pool:
            asking = [pool.submit(ask, number) for number in range(NUM_CLIENTS)]
            try:
                for change in range(1, NUM_CHANGES):
                    taking = fleet.take(settings_of(urls, change))
                    asyncio.run_coroutine_threadsafe(taking, fleet.loop).result(TIMEOUT_S)
                    num_asked = sum(len(engine.requests) for engine in engines)
                    while sum(len(engine.requests) for engine in engines) < num_asked + 10:
                        assert not any(one.done() for one in asking)
                        threading.Event().wait(0.005)
            finally:
                ended.set()
            assert sum(one.result() for one in asking) >= 10 * (NUM_CHANGES - 1)
    assert all(engine.requests for engine in engines)
