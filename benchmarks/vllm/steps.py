"""Step time against the tokens of a batch, by drafter: the cost of verification on this machine.

Outputs have a fixed length, so random weights suffice.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentspec.reporting.report import Announce
from benchmarks.vllm.chats import Chat, load
from benchmarks.vllm.client import ask_all
from benchmarks.vllm.counters import Counters
from benchmarks.vllm.server import Server
from benchmarks.vllm.sizes import Sizes
from benchmarks.vllm.speculators import SUFFIX, Engine, Speculator

SEED = 41
CHATS_PER_CLIENT = 2
NUM_FIRST = 8  # warm-up requests
RAGGED = Speculator("agentspec ragged", settings={"batch_shape": "ragged"})
# rows of 8 tokens: padding all drafts to the longest favours short ones
UNIFORM = Speculator("agentspec uniform", num_tokens=7, settings={"batch_shape": "uniform"})
# drafts at any cost: more tokens in a batch than any price would allow
ALWAYS = Speculator("agentspec always", num_tokens=7, settings={"batch_shape": "uniform", "price": 0.0})


def measure(engine: Engine, sizes: Sizes, log_dir: Path, announce: Announce) -> dict[str, Any]:
    """Return step times and tokens by speculator and concurrent requests; figures for the JSON.

    Raises:
        AgentSpecError: a server did not start.
    """
    most = CHATS_PER_CLIENT * max(sizes.step_clients)
    chats = [
        chat.asking(max_tokens=sizes.step_tokens, ignore_eos=True) for chat in load(NUM_FIRST + most, SEED)
    ]
    figures: dict[str, dict[str, Any]] = {}
    for speculator in (engine.none, SUFFIX, RAGGED, UNIFORM, ALWAYS):
        announce(f"steps, {speculator.name}")
        with engine.serving(speculator, log_dir) as server:
            ask_all(server.url, chats[:NUM_FIRST], NUM_FIRST)
            figures[speculator.name] = {
                str(number): _serve(server, chats[NUM_FIRST:][: CHATS_PER_CLIENT * number], number)
                for number in sizes.step_clients
            }
    return {"steps": figures}


def _serve(server: Server, chats: Sequence[Chat], num_clients: int) -> dict[str, float]:
    before, begin_s = server.counters(), time.perf_counter()
    ask_all(server.url, chats, num_clients)
    return figures_of(server.counters() - before, time.perf_counter() - begin_s)


def figures_of(counted: Counters, wall_s: float) -> dict[str, float]:
    """Return means over the steps in ``wall_s``; some of them read prompts."""
    return {
        "step_ms": 1e3 * wall_s / counted.num_batches,
        "batch_tokens": (counted.num_output_tokens - counted.num_accepted_tokens + counted.num_draft_tokens)
        / counted.num_batches,
        "tokens_per_s": counted.num_output_tokens / wall_s,
        "accepted_per_step": counted.accepted_per_step,
    }
