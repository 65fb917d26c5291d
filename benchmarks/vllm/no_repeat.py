"""The price of the plugin where it can't help: traffic that repeats nothing, against no speculation.

Random weights, random prompts and temperature 1: no output resembles another. The plugin must find out by
itself that drafts do not pay: it has no price set. Both servers run all the time and are loaded in turn,
since the machine's speed drifts. The figures are medians of the ratios of neighbouring turns.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from agentspec.reporting.report import Announce
from agentspec.wire import XARGS_FIELD
from benchmarks.vllm.chats import MODEL_NAME, Chat
from benchmarks.vllm.client import ask_all
from benchmarks.vllm.server import Server
from benchmarks.vllm.sizes import Sizes
from benchmarks.vllm.speculators import NONE, OURS, Engine

NUM_CLIENTS = (1, 8, 32)
MOST_TOKENS = 64
PROMPT_WORDS = 40
RANDOM_WEIGHTS = ("--load-format", "dummy")
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def measure(engine: Engine, sizes: Sizes, log_dir: Path, announce: Announce) -> dict[str, Any]:
    """Return the figures for the JSON: throughput as a share of that without speculation.

    Raises:
        AgentSpecError: a server did not start.
    """
    rng = random.Random(61)
    figures: dict[str, Any] = {}
    with ExitStack() as stack:
        servers = {
            one.name: stack.enter_context(engine.serving(one, log_dir, *RANDOM_WEIGHTS))
            for one in (NONE, OURS)
        }
        for num_clients in NUM_CLIENTS:
            announce(f"no_repeat, {num_clients} at a time")
            num_chats = sizes.no_repeat_chats * max(1, num_clients // 4)
            seconds: dict[str, list[float]] = {name: [] for name in servers}
            for turn in range(1 + sizes.no_repeat_turns):
                order = sorted(servers, reverse=bool(turn % 2))
                for name in order:
                    chats = [random_chat(rng) for _ in range(num_chats)]
                    taken_s = _seconds(servers[name], chats, num_clients)
                    if turn:  # the first turn warms up
                        seconds[name].append(taken_s)
            ratios = [a / b for a, b in zip(seconds[NONE.name], seconds[OURS.name], strict=True)]
            figures[f"no_repeat_throughput_c{num_clients}"] = median(ratios)
            figures[f"turns_c{num_clients}"] = seconds
        counted = servers[OURS.name].counters()
    return {
        **figures,
        "num_output_tokens": counted.num_output_tokens,
        "num_draft_tokens": counted.num_draft_tokens,
        "num_accepted_tokens": counted.num_accepted_tokens,
    }


def random_chat(rng: random.Random) -> Chat:
    """Return a request that resembles no other."""
    words = ["".join(rng.choices(LETTERS, k=rng.randint(3, 9))) for _ in range(PROMPT_WORDS)]
    body = {
        "model": MODEL_NAME,
        "messages": [{"role": "user", "content": " ".join(words)}],
        "temperature": 1.0,
        "max_tokens": MOST_TOKENS,
        "ignore_eos": True,
        XARGS_FIELD: {"agentspec_stage": "chat/answer"},
    }
    return Chat(words[0], "chat/answer", body)


def _seconds(server: Server, chats: Sequence[Chat], num_clients: int) -> float:
    begin_s = time.perf_counter()
    ask_all(server.url, chats, num_clients)
    return time.perf_counter() - begin_s
