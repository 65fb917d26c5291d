"""KEDA's queries, answered by a real Prometheus that scrapes two gateways."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.deploy.support.chart import NAMESPACE, RELEASE, VALUES_FILES, has_tools, one_of, rendered
from tests.deploy.support.holding_engine import HoldingEngine, holding_engine
from tests.deploy.support.prometheus import Prometheus, prometheus, scraping
from tests.gateway.support.live import chat_body, post, serving_engine, serving_proxy
from tests.gateway.support.scripted import ScriptedEngine

pytestmark = pytest.mark.skipif(
    not has_tools() or prometheus() is None,
    reason="needs Helm and Prometheus: make test-deploy PROMETHEUS=prometheus",
)

POD = f"{RELEASE}-agentspec-gateway-7d9f-"


def query(component: str, trigger: str) -> str:
    triggers = one_of(rendered(VALUES_FILES[0]), "ScaledObject", component)["spec"]["triggers"]
    [found] = [one for one in triggers if one.get("name") == trigger]
    text: str = found["metadata"]["query"]
    return text


@dataclass(frozen=True, slots=True)
class Scraped:
    """Two gateways before one engine, a third one of another release, and Prometheus."""

    engine: HoldingEngine
    roots: list[str]
    server: Prometheus


@pytest.fixture
def scraped(tmp_path: Path) -> Iterator[Scraped]:
    with ExitStack() as stack:
        engine = stack.enter_context(holding_engine())
        room = {"max_concurrent": 2}
        roots = [stack.enter_context(serving_proxy(engine.root, settings=room)) for _ in range(3)]
        names = (f"{POD}a", f"{POD}b", "other-agentspec-gateway-a")
        yield Scraped(
            engine,
            roots,
            stack.enter_context(scraping(dict(zip(names, roots, strict=True)), NAMESPACE, tmp_path)),
        )


def test_the_demand_for_engines_is_what_runs_and_waits_on_all_gateways(scraped: Scraped) -> None:
    with ThreadPoolExecutor(8) as clients:
        try:
            for root, number in zip(scraped.roots, (5, 1, 2), strict=True):
                for _ in range(number):
                    clients.submit(post, root, chat_body())
            scraped.engine.wait_for(2 + 1 + 2)  # three wait in the first gateway
            scraped.server.wait_for(query("engine", "requests"), 5 + 1)
        finally:
            scraped.engine.release()
    scraped.server.wait_for(query("engine", "requests"), 0)


def test_the_rate_of_requests_is_there(scraped: Scraped) -> None:
    scraped.engine.release()
    rate = query("gateway", "requests")
    for _ in range(200):
        for root in scraped.roots:
            post(root, chat_body())
        if (scraped.server.value(rate) or 0) > 0:
            return
    pytest.fail(f"no rate: {rate}")


def test_steps_that_both_gateways_report_count_once(tmp_path: Path) -> None:
    with ExitStack() as stack:
        root = stack.enter_context(serving_engine(ScriptedEngine()))
        names = {f"{POD}a": root, f"{POD}b": root}  # the same counters twice
        server = stack.enter_context(scraping(names, NAMESPACE, tmp_path))
        both = query("engine", "decode-steps")
        one = both.replace(f'pod=~"{RELEASE}-agentspec-gateway-.*"', f'pod="{POD}a"')
        assert one != both
        for _ in range(400):
            post(root, chat_body())
            if (server.value(both) or 0) > 0 and server.value(f"{both} - {one}") == 0:
                return
    pytest.fail(f"no rate: {both}")
