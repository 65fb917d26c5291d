"""The price of the plugin where it can't help: traffic that repeats nothing, against no speculation.

Random weights, random prompts and temperature 1: no output resembles another. The plugin must find out by
itself that drafts do not pay: it has no price set. Two servers run at a time, one of each kind, and are
loaded in turn, since the machine's speed drifts. A worker of vLLM polls for a second after its last request,
so the next load waits until the cores are free. Servers of one kind differ from start to start, hence several
pairs. The figures are means over the pairs, of the median ratios of neighbouring turns; ``standard_error_*``
says how far such a mean can be trusted.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

from agentspec.reporting.report import Announce
from agentspec.wire import XARGS_FIELD
from benchmarks.vllm.chats import MODEL_NAME, Chat
from benchmarks.vllm.client import ask_all
from benchmarks.vllm.counters import Counters
from benchmarks.vllm.server import Server
from benchmarks.vllm.sizes import Sizes
from benchmarks.vllm.speculators import NONE, OURS, Engine

NUM_CLIENTS = (1, 8, 32)
MOST_TOKENS = 64
PROMPT_WORDS = 40
RANDOM_WEIGHTS = ("--load-format", "dummy")
SETTLE_S = 1.5  # longer than an idle worker polls
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def measure(engine: Engine, sizes: Sizes, log_dir: Path, announce: Announce) -> dict[str, Any]:
    """Return the figures for the JSON: throughput as a share of that without speculation.

    Raises:
        AgentSpecError: a server did not start.
    """
    rng = random.Random(61)
    ratios: dict[int, list[float]] = {number: [] for number in NUM_CLIENTS}
    counted = Counters()
    for pair in range(sizes.no_repeat_pairs):
        with ExitStack() as stack:
            servers = {
                one.name: stack.enter_context(engine.serving(one, log_dir, *RANDOM_WEIGHTS))
                for one in ((NONE, OURS) if pair % 2 == 0 else (OURS, NONE))
            }
            for num_clients in NUM_CLIENTS:
                announce(f"no_repeat, pair {pair + 1} of {sizes.no_repeat_pairs}, {num_clients} at a time")
                ratios[num_clients].append(_throughput(servers, sizes, num_clients, rng))
            counted += servers[OURS.name].counters()
    return {
        **{f"no_repeat_throughput_c{number}": fmean(found) for number, found in ratios.items()},
        **_standard_errors(ratios),
        **{f"pairs_c{number}": found for number, found in ratios.items()},
        "num_output_tokens": counted.num_output_tokens,
        "num_draft_tokens": counted.num_draft_tokens,
        "num_accepted_tokens": counted.num_accepted_tokens,
    }


def _standard_errors(ratios: Mapping[int, Sequence[float]]) -> dict[str, float]:
    """Return those of the means; one pair has none."""
    return {
        f"standard_error_c{number}": stdev(found) / len(found) ** 0.5
        for number, found in ratios.items()
        if len(found) > 1
    }


def _throughput(servers: Mapping[str, Server], sizes: Sizes, num_clients: int, rng: random.Random) -> float:
    """Return the throughput of one server with the plugin as a share of the other's: the median of turns."""
    num_chats = sizes.no_repeat_chats * max(1, num_clients // 4)
    ratios: list[float] = []
    for turn in range(1 + sizes.no_repeat_turns):
        taken_s = {
            name: _seconds(servers[name], [random_chat(rng) for _ in range(num_chats)], num_clients)
            for name in sorted(servers, reverse=bool(turn % 2))
        }
        if turn:  # the first turn warms up
            ratios.append(taken_s[NONE.name] / taken_s[OURS.name])
    return median(ratios)


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
    time.sleep(SETTLE_S)
    begin_s = time.perf_counter()
    ask_all(server.url, chats, num_clients)
    return time.perf_counter() - begin_s
