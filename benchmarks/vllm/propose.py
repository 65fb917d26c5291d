"""Time of a whole ``propose`` as vLLM calls it, ours and the in-tree suffix proposer's, in one process.

Each has 64 live requests: recorded calls in a changing batch, drafts verified against the records. Both have
learned the same past outputs, a few more than the in-tree proposer keeps, and get the same calls in the same
order. They work in turn; each finishes its work outside the step before the other's turn.

The worker notifies our proposer of requests that begin and end: while a GPU runs the model, and on a CPU
afterwards. The in-tree proposer does all of this in ``propose``. So ours is timed with the notifications;
``propose`` without them is reported separately. With model runner V2, the plugin takes of the worker's thread
what our planner takes: the device's stream runs the step itself. Learning and indexing outside the step count
only in our processor time.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from agentspec.replay.calls import TEKKEN, Call, Encode, RecordedCall, load_tokenizer, read
from benchmarks.harness import traces
from benchmarks.harness.process import without_gc
from benchmarks.vllm.live_batch import NUM_LIVE, LiveBatch
from benchmarks.vllm.proposers import InTreeProposer, OurPlanner, OurProposer, TimedProposer
from benchmarks.vllm.sizes import Sizes
from benchmarks.vllm.speculators import NUM_SPECULATIVE_TOKENS

MOST_PROMPT_TOKENS = 4_096
MOST_OUTPUT_TOKENS = 1_024
MOST_CHARS_PER_TOKEN = 6  # a longer text exceeds the token limit anyway
WARM_UP_STEPS = 20
OURS, PLANNER, THEIRS = "ours", "ours, planned for model runner V2", "suffix"


def measure(folder: Path, sizes: Sizes) -> dict[str, Any]:
    """Return the figures for the JSON; times in ms.

    Raises:
        ConfigError: the traces are missing or too small.
    """
    past, live = _calls(folder, sizes.num_calls)
    most = MOST_PROMPT_TOKENS + MOST_OUTPUT_TOKENS + NUM_SPECULATIVE_TOKENS
    ours, planned, theirs = (LiveBatch(iter(live), NUM_LIVE, most) for _ in range(3))
    proposers: dict[str, TimedProposer] = {
        OURS: OurProposer(ours),
        PLANNER: OurPlanner(planned),
        THEIRS: InTreeProposer(theirs),
    }
    for proposer in proposers.values():
        for call in past:
            proposer.learn(call)
    _take_steps(proposers, WARM_UP_STEPS)
    begun = {name: one.batch.num_tokens for name, one in proposers.items()}
    steps = _take_steps(proposers, sizes.num_steps)
    alone = {name: _spread_ms(seconds) for name, seconds in steps.alone_s.items()}
    whole = {name: _spread_ms(seconds) for name, seconds in steps.whole_s.items()}
    num_rows = sizes.num_steps * NUM_LIVE
    return {
        "propose_speedup_b64": whole[THEIRS]["mean"] / whole[OURS]["mean"],
        "propose_ms_b64": whole[OURS]["mean"],
        "propose_thread_ms_b64": whole[PLANNER]["mean"],
        "alone_speedup_b64": alone[THEIRS]["mean"] / alone[OURS]["mean"],
        "alone_ms_b64": alone[OURS]["mean"],
        "cpu_ms": {name: 1e3 * seconds / sizes.num_steps for name, seconds in steps.cpu_s.items()},
        "num_live": NUM_LIVE,
        "num_learned_tokens": sum(len(call.response) for call in past),
        "times_ms": whole,
        "alone_times_ms": alone,
        "drafted_per_request": {name: number / num_rows for name, number in steps.num_drafted.items()},
        "tokens_per_step": {
            name: (one.batch.num_tokens - begun[name]) / num_rows for name, one in proposers.items()
        },
    }


class Steps:
    """Times of steps, by proposer.

    Attributes:
        alone_s: seconds of each ``propose``.
        whole_s: the same with the worker's notifications.
        cpu_s: processor seconds of all steps and of work outside them, by any thread.
        num_drafted: number of draft tokens.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self.alone_s: dict[str, list[float]] = {name: [] for name in names}
        self.whole_s: dict[str, list[float]] = {name: [] for name in names}
        self.cpu_s = dict.fromkeys(names, 0.0)
        self.num_drafted = dict.fromkeys(names, 0)

    def take(self, name: str, proposer: TimedProposer) -> None:
        """Time one step of one proposer."""
        proposer.schedule()
        begin_cpu_s, begin_s = time.process_time(), time.perf_counter()
        proposer.hear()
        heard_s = time.perf_counter()
        proposer.drafts = proposer.propose()
        end_s = time.perf_counter()
        self.alone_s[name].append(end_s - heard_s)
        self.whole_s[name].append(end_s - begin_s)
        self.num_drafted[name] += sum(map(len, proposer.drafts))
        proposer.rest()
        self.cpu_s[name] += time.process_time() - begin_cpu_s


def _take_steps(proposers: Mapping[str, TimedProposer], num_steps: int) -> Steps:
    steps, order = Steps(list(proposers)), random.Random(0)
    with without_gc():
        for _ in range(num_steps):
            for one in proposers.values():
                one.batch.advance(one.drafts)
            for name in order.sample(list(proposers), len(proposers)):
                steps.take(name, proposers[name])
    return steps


def _calls(folder: Path, num_calls: int) -> tuple[list[Call], list[Call]]:
    """Return ``num_calls`` past calls and as many live calls per file, all files interleaved."""
    encode = load_tokenizer(TEKKEN)
    halves: tuple[list[list[Call]], list[list[Call]]] = ([], [])
    for path in traces.files(folder):
        recorded = list(read(path))
        for half, found in enumerate(halves):
            chosen = islice((one for one in recorded if one.half() == half), num_calls)
            found.append([_tokens(path, one, encode) for one in chosen])
    past, live = (list(_mixed(found)) for found in halves)
    return past, live


def _mixed(files: Sequence[Sequence[Call]]) -> Iterator[Call]:
    rows = chain.from_iterable(zip_longest(*files))
    return (call for call in rows if call is not None and len(call.response))


def _tokens(path: Path, call: RecordedCall, encode: Encode) -> Call:
    workflow = path.name.partition(".")[0]
    prompt = call.prompt[-MOST_PROMPT_TOKENS * MOST_CHARS_PER_TOKEN :]
    response = call.response[: MOST_OUTPUT_TOKENS * MOST_CHARS_PER_TOKEN]
    return Call(
        f"{workflow}/{call.stage.replace('/', '-')[:64]}",
        f"{workflow}-{call.session}"[:255],
        encode(prompt)[-MOST_PROMPT_TOKENS:],
        encode(response)[:MOST_OUTPUT_TOKENS],
    )


def _spread_ms(seconds: Sequence[float]) -> dict[str, float]:
    values = 1e3 * np.array(seconds)
    return {
        "mean": float(values.mean()),
        "p50": float(np.percentile(values, 50)),
        "p99": float(np.percentile(values, 99)),
        "max": float(values.max()),
    }
