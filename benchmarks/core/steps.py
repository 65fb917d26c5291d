"""Time of a whole decode step: accepted tokens go in, drafts from two trees come out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from operator import eq

from agentspec.benchmarks.core.corpus import Corpus
from agentspec.benchmarks.core.requests import ACCEPTED_TOKENS, Request, next_batch, requests
from agentspec.benchmarks.core.sides import Decoder, Draft
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
# The rounds alternate: a machine that is shared gives a second thread more or less for seconds at a time.
NUM_PARTS = 6


def measure(
    decoders: Mapping[str, Decoder], corpus: Corpus, sizes: Sizes
) -> dict[str, dict[str, Spread] | dict[str, float]]:
    """At each batch size ms of a step of each side, and per request and step how many tokens it drafted.

    And how many of our own were the peer's, too: the same token at the same place.
    """
    for output in corpus.history:
        for decoder in decoders.values():
            decoder.learn(output)
    num_steps = len(sizes.batch_sizes) * NUM_PARTS * len(ROUNDS) * (WARM_UP_STEPS + _num_timed(sizes))
    num_output = num_steps * ACCEPTED_TOKENS
    everybody = requests(corpus, max(sizes.batch_sizes), sizes.prompt_tokens, num_output)
    figures: dict[str, dict[str, Spread] | dict[str, float]] = {}
    num_live = 0
    for batch_size in sizes.batch_sizes:
        for request in everybody[num_live:batch_size]:
            for decoder in decoders.values():
                decoder.start(request.name, request.prompt)
        num_live = batch_size
        turns, counts = Turns(), Counts()
        for _ in range(NUM_PARTS):
            for names in ROUNDS:
                timed = {figure: decoders[name] for figure, name in names.items() if name in decoders}
                others = [one for name, one in decoders.items() if name not in names.values()]
                _step(timed, others, everybody[:num_live], _num_timed(sizes), turns, counts)
        num_drafts = NUM_PARTS * _num_timed(sizes) * batch_size
        figures[f"step_ms_b{batch_size}"] = turns.spreads_ms()
        figures[f"drafted_per_request_b{batch_size}"] = counts.drafted_per(num_drafts)
        figures[f"agreed_per_request_b{batch_size}"] = counts.agreed_per(num_drafts)
    return figures


class Counts:
    """Draft tokens by side; ``agreed`` are those of ours that are also the peer's."""

    def __init__(self) -> None:
        self._drafted: Counter[str] = Counter()
        self._agreed: Counter[str] = Counter()

    def add(self, results: Mapping[str, Sequence[Draft]]) -> None:
        """One step's drafts of each side."""
        tokens = {name: [draft.token_ids for draft in drafts] for name, drafts in results.items()}
        for name, drafts in tokens.items():
            self._drafted[name] += sum(map(len, drafts))
        if "ours" in tokens and "peer" in tokens:
            both = zip(tokens["ours"], tokens["peer"], strict=True)
            self._agreed["ours"] += sum(sum(map(eq, ours, theirs)) for ours, theirs in both)

    def drafted_per(self, number: int) -> dict[str, float]:
        """Tokens by side, over ``number`` drafts."""
        return {name: drafted / number for name, drafted in self._drafted.items()}

    def agreed_per(self, number: int) -> dict[str, float]:
        """Those that both sides drafted, over ``number`` drafts."""
        return {name: agreed / number for name, agreed in self._agreed.items()}


def _num_timed(sizes: Sizes) -> int:
    """Steps of one round in one part."""
    return -(-sizes.num_steps // NUM_PARTS)


def _step(
    timed: Mapping[str, Decoder],
    others: list[Decoder],
    live: list[Request],
    num_steps: int,
    turns: Turns,
    counts: Counts,
) -> None:
    batches = [next_batch(live) for _ in range(WARM_UP_STEPS + num_steps)]
    for batch in batches[:WARM_UP_STEPS]:
        for decoder in timed.values():
            decoder.step(batch)
    with without_gc():
        for batch in batches[WARM_UP_STEPS:]:
            counts.add(turns.take({name: partial(one.step, batch) for name, one in timed.items()}))
    for batch in batches:  # nobody misses any output
        for decoder in others:
            decoder.step(batch)
