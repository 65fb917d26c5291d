"""Time of a whole ``propose`` as vLLM calls it, ours and the in-tree suffix proposer's, in one process.

Both see the same batch of live requests, whose outputs are recorded ones, and have learned the same past
outputs. They work in turn. What our worker tells the proposer of a step is timed with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from agentspec.benchmarks.core import corpus
from agentspec.benchmarks.core.requests import ACCEPTED_TOKENS, requests
from agentspec.benchmarks.core.turns import Turns
from agentspec.benchmarks.process import without_gc
from agentspec.benchmarks.vllm.live_batch import LiveBatch
from agentspec.benchmarks.vllm.proposers import InTreeProposer, OurProposer, TimedProposer
from agentspec.benchmarks.vllm.sizes import Sizes
from agentspec.benchmarks.vllm.speculators import NUM_SPECULATIVE_TOKENS

NUM_LIVE = 64
PROMPT_TOKENS = 2_048
WARM_UP_STEPS = 5
OURS, THEIRS = "ours", "suffix"


def measure(traces: Path, sizes: Sizes) -> dict[str, Any]:
    """The figures as they go into the JSON; times in ms.

    Raises:
        ConfigError: the traces are missing or too small.
    """
    texts = corpus.load(traces, sizes.corpus)
    num_output = (WARM_UP_STEPS + sizes.num_steps) * ACCEPTED_TOKENS
    live = requests(texts, NUM_LIVE, PROMPT_TOKENS, num_output)
    batch = LiveBatch(live, PROMPT_TOKENS + num_output + 2 * NUM_SPECULATIVE_TOKENS)
    proposers: dict[str, TimedProposer] = {OURS: OurProposer(batch), THEIRS: InTreeProposer(batch)}
    for proposer in proposers.values():
        for output in texts.history:
            proposer.learn(output)
        proposer.begin()
    _take_steps(proposers, batch, WARM_UP_STEPS)
    turns, num_drafted = _take_steps(proposers, batch, sizes.num_steps)
    times = {name: _spread_ms(seconds) for name, seconds in turns.seconds.items()}
    return {
        "propose_speedup_b64": times[THEIRS]["mean"] / times[OURS]["mean"],
        "propose_ms_b64": times[OURS]["mean"],
        "num_live": NUM_LIVE,
        "num_learned_tokens": sum(map(len, texts.history)),
        "times_ms": times,
        "drafted_per_request": {
            name: number / (sizes.num_steps * NUM_LIVE) for name, number in num_drafted.items()
        },
    }


def _take_steps(
    proposers: Mapping[str, TimedProposer], batch: LiveBatch, num_steps: int
) -> tuple[Turns, Counter[str]]:
    """The seconds of each proposer's steps, and how many tokens it drafted."""
    turns, num_drafted = Turns(), Counter[str]()
    with without_gc():
        for _ in range(num_steps):
            batch.advance()
            drafts = turns.take({name: one.step for name, one in proposers.items()})
            num_drafted.update({name: sum(map(len, rows)) for name, rows in drafts.items()})
    return turns, num_drafted


def _spread_ms(seconds: Sequence[float]) -> dict[str, float]:
    values = 1e3 * np.array(seconds)
    return {
        "mean": float(values.mean()),
        "p50": float(np.percentile(values, 50)),
        "p99": float(np.percentile(values, 99)),
        "max": float(values.max()),
    }
