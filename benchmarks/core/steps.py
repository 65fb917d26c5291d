"""Time of a whole decode step: accepted tokens go in, drafts from two trees come out."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from agentspec.benchmarks.core.corpus import Corpus
from agentspec.benchmarks.core.requests import ACCEPTED_TOKENS, Request, next_batch, requests
from agentspec.benchmarks.core.sides import Decoder
from agentspec.benchmarks.core.sizes import Sizes
from agentspec.benchmarks.core.turns import Spread, Turns
from agentspec.benchmarks.process import without_gc

WARM_UP_STEPS = 3


def measure(
    decoders: Mapping[str, Decoder], corpus: Corpus, sizes: Sizes
) -> dict[str, dict[str, Spread] | dict[str, float]]:
    """ms of a step, and draft tokens per request and step, of each side at each batch size."""
    for output in corpus.history:
        for decoder in decoders.values():
            decoder.learn(output)
    num_steps = len(sizes.batch_sizes) * (WARM_UP_STEPS + sizes.num_steps)
    num_output = num_steps * ACCEPTED_TOKENS
    everybody = requests(corpus, max(sizes.batch_sizes), sizes.prompt_tokens, num_output)
    figures: dict[str, dict[str, Spread] | dict[str, float]] = {}
    num_live = 0
    for batch_size in sizes.batch_sizes:
        for request in everybody[num_live:batch_size]:
            for decoder in decoders.values():
                decoder.start(request.name, request.prompt)
        num_live = batch_size
        turns, drafted = _steps(decoders, everybody[:num_live], sizes.num_steps)
        figures[f"step_ms_b{batch_size}"] = turns.spreads_ms()
        figures[f"drafted_per_request_b{batch_size}"] = {
            name: number / (sizes.num_steps * batch_size) for name, number in drafted.items()
        }
    return figures


def _steps(
    decoders: Mapping[str, Decoder], live: list[Request], num_steps: int
) -> tuple[Turns, dict[str, int]]:
    for _ in range(WARM_UP_STEPS):
        batch = next_batch(live)
        for decoder in decoders.values():
            decoder.step(batch)
    turns, drafted = Turns(), dict.fromkeys(decoders, 0)
    with without_gc():
        for _ in range(num_steps):
            batch = next_batch(live)
            results = turns.take({name: partial(one.step, batch) for name, one in decoders.items()})
            for name, drafts in results.items():
                drafted[name] += sum(map(len, drafts))
    return turns, drafted
