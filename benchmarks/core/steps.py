"""Time of a whole decode step: accepted tokens go in, drafts from two trees come out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from operator import eq

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
    """At each batch size ms of a step of each side, and per request and step how many tokens it drafted.

    And how many of our own were the peer's, too: the same token at the same place.
    """
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
        agreed: dict[str, float] = {}
        for names in ROUNDS:
            timed = {figure: decoders[name] for figure, name in names.items() if name in decoders}
            others = [one for name, one in decoders.items() if name not in names.values()]
            turns, counts = _steps(timed, others, everybody[:num_live], sizes.num_steps)
            spreads |= turns.spreads_ms()
            num_drafts = sizes.num_steps * batch_size
            drafted |= {name: number / num_drafts for name, number in counts.drafted.items()}
            agreed |= {name: number / num_drafts for name, number in counts.agreed.items()}
        figures[f"step_ms_b{batch_size}"] = spreads
        figures[f"drafted_per_request_b{batch_size}"] = drafted
        figures[f"agreed_per_request_b{batch_size}"] = agreed
    return figures


class Counts:
    """Draft tokens by side; ``agreed`` are those of ours that are also the peer's."""

    def __init__(self) -> None:
        self.drafted: Counter[str] = Counter()
        self.agreed: Counter[str] = Counter()

    def add(self, results: Mapping[str, Sequence[Collection[int]]]) -> None:
        """One step's drafts of each side."""
        for name, drafts in results.items():
            self.drafted[name] += sum(map(len, drafts))
        if "ours" in results and "peer" in results:
            both = zip(results["ours"], results["peer"], strict=True)
            self.agreed["ours"] += sum(sum(map(eq, ours, theirs)) for ours, theirs in both)


def _steps(
    timed: Mapping[str, Decoder], others: list[Decoder], live: list[Request], num_steps: int
) -> tuple[Turns, Counts]:
    batches = [next_batch(live) for _ in range(WARM_UP_STEPS + num_steps)]
    for batch in batches[:WARM_UP_STEPS]:
        for decoder in timed.values():
            decoder.step(batch)
    turns, counts = Turns(), Counts()
    with without_gc():
        for batch in batches[WARM_UP_STEPS:]:
            counts.add(turns.take({name: partial(one.step, batch) for name, one in timed.items()}))
    for batch in batches:  # nobody misses any output
        for decoder in others:
            decoder.step(batch)
    return turns, counts
