"""Two processes that discover, merge and split stages in one place at the same time."""

from __future__ import annotations

import subprocess
import sys

TIMEOUT_S = 120
_WORK = """
import sys
from contextlib import suppress
from pathlib import Path
from agentspec.errors import RequestError
from agentspec.gateway.discovery.redis_store import RedisDiscoveryStore
from agentspec.gateway.discovery.service import Discovery
from agentspec.gateway.settings import DiscoverySettings
discovery = {made}
for number in range(120):
    word = chr(97 + (number * int(sys.argv[1])) % 26)
    discovery.stage_of("acme", {{"instructions": f"Plan {{word}}.", "input": str(number)}})
    discovery.catch_up()
    clusters = discovery.clusters("acme")
    with suppress(RequestError):
        if number % 10 == 9:
            discovery.merge("acme", clusters[0].id, clusters[-1].id)
        if number % 10 == 4 and len(clusters[-1].members) > 1:
            discovery.split("acme", clusters[-1].id, [next(iter(clusters[-1].members)).hex()])
discovery.close()
"""


def run_two(made: str) -> None:
    """Run both to their ends. ``made`` is the expression of their discovery."""
    command = [sys.executable, "-W", "error", "-c", _WORK.format(made=made)]
    runs = [subprocess.Popen([*command, factor]) for factor in ("3", "5")]
    assert [run.wait(TIMEOUT_S) for run in runs] == [0, 0]
