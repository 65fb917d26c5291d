"""The corpus of a vLLM server, as its figures show it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from agentspec.vllm_plugin.launch import RUNNER_VARIABLE
from benchmarks.vllm.server import Server
from tests.real_vllm.support.ranks import TIMEOUT_S

AHEAD, STEP_BY_STEP = "--async-scheduling", "--no-async-scheduling"
MODES = (AHEAD, STEP_BY_STEP) if os.environ.get(RUNNER_VARIABLE) == "1" else (STEP_BY_STEP,)

Figures = dict[str, float]


def figures(server: Server) -> Figures:
    found: Figures = server.control("status")["corpus"]
    return found


def wait_for(server: Server, is_so: Callable[[Figures], bool]) -> None:
    end_s = time.monotonic() + TIMEOUT_S
    while not is_so(seen := figures(server)):
        assert time.monotonic() < end_s, seen
        time.sleep(0.1)
