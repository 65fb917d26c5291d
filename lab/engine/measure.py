"""Rounds of calls. Every method decodes each call in turn."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping

from agentspec.engine.batch import Segment
from agentspec.engine.model.kv_cache import KVCache
from agentspec.reporting.report import Announce
from benchmarks.harness.process import without_gc
from lab.engine.calls import EngineCall, Work
from lab.engine.lane import MAX_BATCH_TOKENS, Decoded, Lane
from lab.engine.methods import DRAFTS, METHODS, proposer
from lab.engine.shapes import Measured
from lab.engine.sizes import Sizes

Round = Mapping[str, Mapping[str, Decoded]]  # method -> stage -> totals of its steps
ANNOUNCE_EVERY = 5  # calls


def measure(measured: Measured, work: Work, sizes: Sizes, announce: Announce) -> list[Round]:
    """Measure rounds of calls, each with fresh trees.

    The methods alternate call by call, and a different one is first each time.
    """
    model, until_s = measured.model, time.monotonic() + 60 * sizes.minutes
    max_len = sizes.prompt_tokens + sizes.output_tokens + max(one.max_tokens for one in DRAFTS.values()) + 2
    cache = KVCache(model.config, 1, max_len, model.dtype, model.device)
    announce("warming up")
    _warm_up(measured, cache, work.calls[0])
    rounds: list[Round] = []
    for number in range(sizes.rounds):
        lanes = {name: Lane(measured, cache, proposer(name, work.history), DRAFTS[name]) for name in METHODS}
        decoded: dict[str, defaultdict[str, Decoded]] = {name: defaultdict(Decoded) for name in METHODS}
        rounds.append(decoded)
        for index, call in enumerate(work.calls):
            if index % ANNOUNCE_EVERY == 0:
                announce(f"round {number + 1} of {sizes.rounds}, call {index + 1} of {len(work.calls)}")
            _read_prompt(measured, cache, call)
            first = (number + index) % len(METHODS)
            with without_gc():
                for name in (*METHODS[first:], *METHODS[:first]):
                    decoded[name][call.stage].add(lanes[name].decode(f"call {index}", call))
            if time.monotonic() > until_s:
                announce(f"the time is up: {index + 1} calls of round {number + 1}")
                return rounds
    return rounds


def _read_prompt(measured: Measured, cache: KVCache, call: EngineCall) -> None:
    """Write the prompt's entries, except the last token's, into the slot from which the lanes continue."""
    prompt = call.prompt[:-1]
    for start in range(0, len(prompt), MAX_BATCH_TOKENS):
        chunk = prompt[start : start + MAX_BATCH_TOKENS]
        measured.model.forward([Segment(0, start, chunk, logits_from=len(chunk))], cache)


def _warm_up(measured: Measured, cache: KVCache, call: EngineCall) -> None:
    """Run each kind of pass once. The first passes take longer: they allocate memory and select kernels."""
    _read_prompt(measured, cache, call)
    for name in METHODS:
        Lane(measured, cache, proposer(name, ()), DRAFTS[name]).decode("warm-up", call)
