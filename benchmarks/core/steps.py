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
# What is timed in turns, by the name of the figure: 2 threads against 1 without the others in between, which
# take 20 times as long and leave nothing in the caches.
ROUNDS: tuple[dict[str, str], ...] = (
    {"ours": "ours", "peer": "peer", "ours_every_source": "ours_every_source"},
    {"ours_1_thread": "ours", "ours_2_threads": "ours_2_threads"},
)


def measure(
    decoders: Mapping[str, Decoder], corpus: Corpus, sizes: Sizes
) -> dict[str, dict[str, Spread] | dict[str, float]]:
    """ms of a step, and draft tokens per request and step, of each side at each batch size."""
    for output in corpus.history:
        for decoder in decoders.values():
            decoder.learn(output)
    num_steps = len(ROUNDS) * len(sizes.batch_sizes) * (WARM_UP_STEPS + sizes.num_steps)
    num_output = num_steps * ACCEPTED_TOKENS
    everybody = requests(corpus, max(sizes.batch_sizes), sizes.prompt_tokens, num_output)
    figures: dict[str, dict[str, Spread] | dict[str, float]] = {}
    num_live = 0
    for batch_size in sizes.batch_sizes:
        for request in everybody[num_live:batch_size]:
            for decoder in decoders.values():
                decoder.start(request.name, request.prompt)
        num_live = batch_size
        spreads: dict[str, Spread] = {}
        drafted: dict[str, float] = {}
        for names in ROUNDS:
            timed = {figure: decoders[name] for figure, name in names.items() if name in decoders}
            others = [one for name, one in decoders.items() if name not in names.values()]
            turns, numbers = _steps(timed, others, everybody[:num_live], sizes.num_steps)
            spreads |= turns.spreads_ms()
            drafted |= {name: number / (sizes.num_steps * batch_size) for name, number in numbers.items()}
        figures[f"step_ms_b{batch_size}"] = spreads
        figures[f"drafted_per_request_b{batch_size}"] = drafted
    return figures


def _steps(
    timed: Mapping[str, Decoder], others: list[Decoder], live: list[Request], num_steps: int
) -> tuple[Turns, dict[str, int]]:
    batches = [next_batch(live) for _ in range(WARM_UP_STEPS + num_steps)]
    for batch in batches[:WARM_UP_STEPS]:
        for decoder in timed.values():
            decoder.step(batch)
    turns, drafted = Turns(), dict.fromkeys(timed, 0)
    with without_gc():
        for batch in batches[WARM_UP_STEPS:]:
            results = turns.take({name: partial(one.step, batch) for name, one in timed.items()})
            for name, drafts in results.items():
                drafted[name] += sum(map(len, drafts))
    for batch in batches:  # nobody misses any output
        for decoder in others:
            decoder.step(batch)
    return turns, drafted
